"""Tables of workflow steps for tests, in PostgreSQL and in SQLite, and what the conformance suite needs of them."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

from console.core.item import Item, ItemKey
from console.core.policy import PolicyOverride
from console.testing import FrozenClock, Harness, Sample, Store
from plugins.workflow_steps import WorkflowSteps
from plugins.workflow_steps.backend import Options
from plugins.workflow_steps.rows import PHASES
from plugins.workflow_steps.schema import ddl
from tests.patience import PATIENCE
from tests.plugins.postgres_analyses.server import database

NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
NO_POLICY = PolicyOverride()
PAYLOAD = "payload 4711"
TASK_STATES = ("pending", "error", "blocked_by_failures", "waiting_for_retry", "complete", "in_progress", None)
Run = Callable[[str, Sequence[Any]], list[tuple[Any, ...]]]


class Workflow:
    """The tables somewhere, to be filled and looked at by their own means."""

    def __init__(self, url: str, run: Run) -> None:
        self.url = url
        self.run = run
        self.is_sqlite = url.startswith("sqlite")
        self.dot = "" if self.is_sqlite else "tasker."

    def stored(self, value: Any) -> Any:
        if isinstance(value, datetime):
            return value.isoformat() if self.is_sqlite else value.astimezone(UTC).replace(tzinfo=None)
        if isinstance(value, dict | list):
            return json.dumps(value)
        return str(value) if isinstance(value, UUID) else value

    def insert(self, table: str, **values: Any) -> None:
        marks = ", ".join(["?"] * len(values))
        self.run(
            f"INSERT INTO {self.dot}{table} ({', '.join(values)}) VALUES ({marks})", list(map(self.stored, values.values()))
        )

    def name(self, name: str) -> str:
        id = str(uuid4())
        self.insert("named_steps", named_step_uuid=id, name=name)
        return id

    def task(
        self, state: str | None = "pending", since: datetime = NOW, *, created: datetime | None = None, priority: int = 0
    ) -> str:
        task = str(uuid4())
        self.insert("tasks", task_uuid=task, priority=priority, created_at=created or since)
        if state is not None:
            self.move("task", task, state, since)
        return task

    def move(self, what: str, id: str, state: str, at: datetime = NOW, metadata: Any = None) -> None:
        table = f"{self.dot}{what}_transitions"
        found = self.run(f"SELECT max(sort_key) FROM {table} WHERE {what}_uuid = ?", [id])
        self.run(f"UPDATE {table} SET most_recent = ? WHERE {what}_uuid = ?", [False, id])
        self.insert(
            f"{what}_transitions", **{f"{what}_uuid": id}, to_state=state, sort_key=(found[0][0] or 0) + 1,
            most_recent=True, metadata=metadata, created_at=at, updated_at=at,
        )

    def step(
        self, state: str | None = "error", *, task: str | None = None, name: str = "charge", at: datetime = NOW,
        metadata: Any = None, id: str | None = None, **values: Any,
    ) -> str:
        """One step; in error after its three attempts unless something else is said."""
        id = id or str(uuid4())
        usual: dict[str, Any] = {
            "attempts": 3, "max_attempts": 3, "retryable": True, "in_process": False, "processed": False,
            "last_attempted_at": at, "created_at": at, "updated_at": at,
        }
        self.insert(
            "workflow_steps", workflow_step_uuid=id, task_uuid=task or self.task(), named_step_uuid=self.name(name),
            **(usual | values),
        )
        if state is not None:
            self.move("workflow_step", id, state, at, metadata)
        return id

    def dead_letter(self, task: str, status: str = "pending", reason: str = "staleness_timeout") -> None:
        self.insert(
            "tasks_dlq", dlq_entry_uuid=str(uuid4()), task_uuid=task, original_state="waiting_for_retry", dlq_reason=reason,
            dlq_timestamp=NOW, resolution_status=status, task_snapshot={},
        )

    def edge(self, parent: str, child: str) -> None:
        self.insert("workflow_step_edges", from_step_uuid=parent, to_step_uuid=child)

    def row(self, id: str) -> dict[str, Any]:
        columns = ("attempts", "in_process", "processed", "processed_at", "backoff_request_seconds", "results")
        found = self.run(f"SELECT {', '.join(columns)} FROM {self.dot}workflow_steps WHERE workflow_step_uuid = ?", [id])
        return dict(zip(columns, found[0], strict=True))

    def moves(self, what: str, id: str) -> list[tuple[Any, ...]]:
        """(from, to, sort key, most recent) of all transitions, in order."""
        found = self.run(
            f"SELECT from_state, to_state, sort_key, most_recent FROM {self.dot}{what}_transitions"
            f" WHERE {what}_uuid = ? ORDER BY sort_key", [id],
        )
        return [(was, then, number, bool(recent)) for was, then, number, recent in found]

    def metadata(self, what: str, id: str) -> dict[str, Any]:
        ((found,),) = self.run(
            f"SELECT metadata FROM {self.dot}{what}_transitions WHERE {what}_uuid = ? AND most_recent", [id]
        )
        return json.loads(found) if isinstance(found, str) else found

    def all(self) -> list[Any]:
        return [
            self.run(f"SELECT * FROM {self.dot}{table}", [])
            for table in ("workflow_steps", "workflow_step_transitions", "task_transitions")
        ]

    def open(self, *, policy: PolicyOverride = NO_POLICY, read_only: bool = False, **options: Any) -> WorkflowSteps:
        chosen = Options(url=self.url, **options)
        return WorkflowSteps.open("steps", chosen, policy, read_only=read_only, deadline=timedelta(seconds=PATIENCE))


@contextmanager
def postgres_workflow(extra: str = "") -> Iterator[Workflow]:
    with database(f"{ddl()} {extra}") as url, psycopg.connect(url, autocommit=True) as connection:
        def run(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            cursor = connection.execute(sql.replace("?", "%s"), list(values) or None)
            return cursor.fetchall() if cursor.description else []

        yield Workflow(url, run)


@contextmanager
def sqlite_workflow(path: Path) -> Iterator[Workflow]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.executescript(ddl(sqlite=True))

        def run(sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
            return connection.execute(sql, list(values)).fetchall()

        yield Workflow(f"sqlite:///{path}", run)


def _text(value: str | None) -> str | None:
    return None if value is None else value.encode("utf-8", "replace").decode()


def _number(value: Any) -> int | None:
    return max(min(value, 2**31 - 1), -(2**31)) if isinstance(value, int) else None


def harness(workflow: Workflow, policy: PolicyOverride = NO_POLICY) -> Harness:
    references: dict[str, Sequence[str]] = {}

    def put(samples: Sequence[Sample]) -> int:
        chance = random.Random(5)
        tasks = [workflow.task(state, NOW - timedelta(minutes=n)) for n, state in enumerate(TASK_STATES * 5)]
        for sample in samples:
            add(sample, chance, chance.choice((*tasks, str(UUID(int=chance.getrandbits(128), version=4)))))
        return len(samples)

    def add(sample: Sample, chance: random.Random, task: str) -> None:
        id = str(UUID(int=chance.getrandbits(128), version=4))
        times = {
            name: at if isinstance(at, datetime) else None
            for name, at in (("last_attempted_at", sample.due), ("created_at", sample.created), ("updated_at", sample.updated))
        }
        error = _text(sample.error)
        results = chance.choice((None, {"error": {"message": error}}, {"error": error}, {"output": 1}))
        backoff = chance.choice((None, 0, 45, 10**6))
        state = _text(sample.status)
        workflow.step(
            state, task=task, id=id, name=_text(sample.type) or "", metadata=chance.choice((None, {"error_message": error})),
            at=times["updated_at"] or NOW, results=results, attempts=_number(sample.attempts),
            max_attempts=_number(sample.max_attempts), retryable=chance.choice((None, True, True, False)),
            in_process=chance.choice((None, False, False, True)), processed=chance.choice((None, False, True)),
            backoff_request_seconds=backoff, inputs={"x": PAYLOAD}, **times,
        )
        references[id] = [task]

    def referred(item: Item) -> Sequence[str]:
        return references[item.key.parts[0]]

    return Harness(
        workflow.open(policy=policy), put, tuple(PHASES), FrozenClock(NOW), referred, workflow.all, store(workflow, policy)
    )


def store(workflow: Workflow, policy: PolicyOverride) -> Store:
    """The steps with their transitions and those of their tasks, as any client sees them."""

    def by(table: str) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {}
        for row in workflow.run(f"SELECT {table}_uuid, * FROM {workflow.dot}{table}_transitions ORDER BY sort_key", []):
            found.setdefault(str(row[0]), []).append(row[1:])
        return found

    def rows() -> Mapping[ItemKey, object]:
        steps, tasks = by("workflow_step"), by("task")
        found = workflow.run(f"SELECT workflow_step_uuid, task_uuid, * FROM {workflow.dot}workflow_steps", [])
        return {
            ItemKey("steps", (str(id),)): (row, steps.get(str(id)), tasks.get(str(task))) for id, task, *row in found
        }

    def touch(key: ItemKey) -> None:
        workflow.move("workflow_step", key.parts[0], "in_progress")

    def remove(key: ItemKey) -> None:
        for table in ("workflow_step_transitions", "workflow_steps"):
            workflow.run(f"DELETE FROM {workflow.dot}{table} WHERE workflow_step_uuid = ?", [key.parts[0]])

    return Store(rows, touch, remove, lambda: workflow.open(policy=policy, read_only=True), PAYLOAD)
