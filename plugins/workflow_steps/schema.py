"""The tables of the system, and their names in PostgreSQL and in SQLite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from console.sql.layout import Expression

STEPS = (
    "workflow_step_uuid", "task_uuid", "named_step_uuid", "retryable", "max_attempts", "in_process", "processed",
    "processed_at", "attempts", "last_attempted_at", "backoff_request_seconds", "inputs", "results", "created_at",
    "updated_at",
)
TRANSITIONS = (
    "workflow_step_uuid", "to_state", "from_state", "metadata", "sort_key", "most_recent", "created_at", "updated_at",
)
TASK_TRANSITIONS = (
    "task_uuid", "to_state", "from_state", "metadata", "sort_key", "most_recent", "created_at", "updated_at",
)
TABLES = {
    "workflow_steps": STEPS,
    "workflow_step_transitions": TRANSITIONS,
    "named_steps": ("named_step_uuid", "name"),
    "workflow_step_edges": ("from_step_uuid", "to_step_uuid"),
    "task_transitions": TASK_TRANSITIONS,
    "tasks": ("task_uuid", "priority", "created_at"),
}
DEAD_LETTERS = "tasks_dlq"
"""The dead letter queue of tasks. Older versions of the system have neither this table nor a staleness detector."""
_COLUMNS = TABLES | {DEAD_LETTERS: ("task_uuid", "dlq_reason", "dlq_timestamp", "resolution_status")}
BOOLEANS = frozenset({"most_recent", "retryable", "in_process", "processed"})


def ddl(schema: str = "tasker", *, sqlite: bool = False) -> str:
    """The DDL of the system itself, for the demo and for tests. It is never run on an attached database."""
    uuid, json, dot = ("TEXT", "TEXT", "") if sqlite else ("uuid", "jsonb", f"{schema}.")
    key = "INTEGER PRIMARY KEY" if sqlite else "bigserial PRIMARY KEY"
    change = (
        f"to_state TEXT NOT NULL, from_state TEXT, metadata {json}, sort_key INTEGER NOT NULL,"
        " most_recent BOOLEAN NOT NULL, created_at TIMESTAMP NOT NULL, updated_at TIMESTAMP NOT NULL"
    )
    statements = [
        *([] if sqlite else [f"CREATE SCHEMA IF NOT EXISTS {schema}"]),
        f"CREATE TABLE {dot}named_steps (named_step_uuid {uuid} PRIMARY KEY, name TEXT NOT NULL)",
        f"CREATE TABLE {dot}workflow_steps (workflow_step_uuid {uuid} PRIMARY KEY, task_uuid {uuid} NOT NULL,"
        f" named_step_uuid {uuid} NOT NULL, retryable BOOLEAN DEFAULT true, max_attempts INTEGER DEFAULT 3,"
        " in_process BOOLEAN DEFAULT false, processed BOOLEAN DEFAULT false, processed_at TIMESTAMP, attempts INTEGER,"
        f" last_attempted_at TIMESTAMP, backoff_request_seconds INTEGER, inputs {json}, results {json},"
        f" created_at TIMESTAMP, updated_at TIMESTAMP, priority INTEGER, checkpoint {json})",
        f"CREATE TABLE {dot}workflow_step_transitions (id {key}, workflow_step_uuid {uuid} NOT NULL, {change})",
        f"CREATE TABLE {dot}workflow_step_edges (from_step_uuid {uuid} NOT NULL, to_step_uuid {uuid} NOT NULL)",
        f"CREATE TABLE {dot}task_transitions (id {key}, task_uuid {uuid} NOT NULL, {change})",
        f"CREATE TABLE {dot}tasks (task_uuid {uuid} PRIMARY KEY, priority INTEGER NOT NULL DEFAULT 0,"
        " created_at TIMESTAMP NOT NULL)",
        f"CREATE TABLE {dot}tasks_dlq (dlq_entry_uuid {uuid} PRIMARY KEY, task_uuid {uuid} NOT NULL,"
        " original_state TEXT NOT NULL, dlq_reason TEXT NOT NULL, dlq_timestamp TIMESTAMP NOT NULL,"
        f" resolution_status TEXT NOT NULL DEFAULT 'pending', task_snapshot {json} NOT NULL)",
        f"CREATE INDEX step_task ON {dot}workflow_steps (task_uuid)",
        f"CREATE INDEX step_parents ON {dot}workflow_step_edges (to_step_uuid)",
        f"CREATE INDEX dlq_task ON {dot}tasks_dlq (task_uuid)",
        f"CREATE UNIQUE INDEX step_sort ON {dot}workflow_step_transitions (workflow_step_uuid, sort_key)",
        f"CREATE UNIQUE INDEX step_recent ON {dot}workflow_step_transitions (workflow_step_uuid) WHERE most_recent",
        f"CREATE UNIQUE INDEX task_sort ON {dot}task_transitions (task_uuid, sort_key)",
        f"CREATE UNIQUE INDEX task_recent ON {dot}task_transitions (task_uuid) WHERE most_recent",
    ]
    if sqlite:
        statements = [s.replace("INDEX step_", "INDEX s_").replace("INDEX task_", "INDEX t_") for s in statements]
    return "; ".join(statements) + ";"


@dataclass(frozen=True, slots=True)
class StepTables:
    """The attached tables: their schema and kind of database."""

    schema: str
    sqlite: bool
    has_dead_letters: bool = True

    def name(self, table: str) -> str:
        return table if self.sqlite else f"{self.schema}.{table}"

    def alias(self, name: str, alias: str) -> Any:
        """One of the tables under an alias."""
        columns: list[Any] = [
            sa.column(column, sa.Boolean() if column in BOOLEANS else None)
            for column in _COLUMNS[name]
        ]
        return sa.table(name, *columns, schema=None if self.sqlite else self.schema).alias(alias)


def is_uuid(text: str) -> bool:
    """Whether the text is a UUID in the server's format. No row has a key in another format."""
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def texts(*texts: str) -> list[Expression]:
    return [sa.literal_column(f"'{text}'") for text in texts]
