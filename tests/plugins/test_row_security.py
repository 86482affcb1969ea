"""Row-level security hides rows without an error: every plugin for PostgreSQL notices, for each table it reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
import sqlalchemy as sa

from console.core.backend import PageRequest, Severity
from console.core.faults import RowsHidden
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Filter
from plugins.partition_store import PartitionStore
from plugins.partition_store.schema import STATE_DDL as PARTITIONS
from plugins.postgres_analyses import PostgresAnalyses
from plugins.postgres_analyses.schema import ddl as analyses
from plugins.workflow_steps import WorkflowSteps
from plugins.workflow_steps.schema import ddl
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.operating import RealClock
from tests.plugins.postgres_analyses.server import database

STEP, TASK, NAME = (uuid4() for _ in range(3))
SYSTEMS: dict[str, tuple[Any, str, str, str]] = {
    "analyses": (
        PostgresAnalyses, analyses(), "selfology.answer_analysis",
        "INSERT INTO selfology.answer_analysis (vectorization_status) VALUES ('failed')",
    ),
    "partitions": (
        PartitionStore, PARTITIONS, "partition_state",
        "INSERT INTO partition_state (source, customer_id, query_name, logical_date, status, attempt_count, updated_at)"
        " VALUES ('ads', 'c1', 'spend', '2026-11-01', 'failed', 1, now())",
    ),
    "steps": (
        WorkflowSteps, ddl(), "tasker.workflow_steps",
        f"INSERT INTO tasker.named_steps (named_step_uuid, name) VALUES ('{NAME}', 'charge');"
        "INSERT INTO tasker.workflow_steps (workflow_step_uuid, task_uuid, named_step_uuid, created_at, updated_at)"
        f" VALUES ('{STEP}', '{TASK}', '{NAME}', now(), now());"
        "INSERT INTO tasker.workflow_step_transitions (workflow_step_uuid, to_state, sort_key, most_recent, created_at, updated_at)"
        f" VALUES ('{STEP}', 'error', 1, true, now(), now())",
    ),
}
TRANSITIONS = "tasker.workflow_step_transitions"


@contextmanager
def restricted(system: str, folder: Path, table: str = "") -> Iterator[Any]:
    """A backend whose role may read everything but sees no row of one table."""
    plugin, schema, main, rows = SYSTEMS[system]
    with database(schema) as url, psycopg.connect(url, autocommit=True) as owner:
        role = f"reader_{sa.make_url(url).database}"
        owner.execute(f"{rows}; ALTER TABLE {table or main} ENABLE ROW LEVEL SECURITY; CREATE ROLE {role} LOGIN")
        for name in ("public", "selfology", "tasker"):
            if owner.execute("SELECT to_regnamespace(%s)", [name]).fetchone() != (None,):
                owner.execute(f"GRANT USAGE ON SCHEMA {name} TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA {name} TO {role}")
        theirs = sa.make_url(url).set(username=role).render_as_string(hide_password=False)
        given = {"url": theirs, **({"raw_sink": str(folder)} if system == "partitions" else {})}
        options = plugin.options.model_validate(given)
        backend = plugin.open("x", options, PolicyOverride(), read_only=True, deadline=timedelta(seconds=PATIENCE))
        try:
            with closing(backend):
                yield backend
        finally:
            owner.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize("system", SYSTEMS)
def test_an_empty_list_is_never_all_clear(system: str, tmp_path: Path) -> None:
    with restricted(system, tmp_path) as backend:
        now, attention = backend.now(), Filter.parse("")
        for read in (
            lambda: backend.page(PageRequest(attention, now)), lambda: backend.counts(attention, now),
            lambda: list(backend.errors(attention, now, Never())),
        ):
            with pytest.raises(RowsHidden):
                read()
        assert "row security" in {f.subject for f in backend.check(RealClock()) if f.severity is Severity.ERROR}


def test_rows_hidden_in_a_table_that_is_only_joined_are_an_error_of_check(tmp_path: Path) -> None:
    with restricted("steps", tmp_path, TRANSITIONS) as backend:
        found = [f for f in backend.check(RealClock()) if f.subject == "row security"]
        assert [f.severity for f in found] == [Severity.ERROR]
        assert "workflow_step_transitions" in found[0].message
