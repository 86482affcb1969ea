"""The tables of both dialects: how their systems create them, and what their columns and statuses mean.

| native status | condition |
|---|---|
| PENDING, attempts 0 | waiting, even with an old error (after its attempts were reset) |
| PENDING, attempts > 0 | retrying at `next_run_at` / `eta` |
| RUNNING | running; stuck when `updated_at` is older than the limit; in `tasks` than `timeout` plus `stuck_after` |
| FAILED | terminal when no attempts are left, the error is not recoverable or it is too old; else failed |
| DONE, SUCCESS | done |
| CANCELLED | cancelled (dialect `tasks`) |
| anything else | unknown |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

import sqlalchemy as sa

from console.core.action_rules import GIVEN_UP, Decision, decide_discard
from console.core.backend import Operation, Throughput
from console.core.item import Verdict
from console.core.policy import Facts, FixedDelays, Phase, RetryPolicy
from console.sql.layout import Expression
from console.sql.table import DiscardRule, QueueTable, RequeueRule, StoredTime, columns_of
from plugins import _contract_queue as contract
from plugins.sqlite_queue.prediction import predict_task

ASYNC_TASKS_DDL = """
CREATE TABLE async_tasks (
    task_id TEXT PRIMARY KEY,
    task_type TEXT,
    entity_id TEXT,
    status TEXT CHECK (status IN ('PENDING', 'RUNNING', 'DONE', 'FAILED')),
    attempts INTEGER DEFAULT 0,
    next_run_at TEXT NOT NULL,
    last_error TEXT,
    created_at TEXT,
    updated_at TEXT
);
CREATE INDEX idx_async_tasks_status_next_run ON async_tasks (status, next_run_at);
"""
"""What the analysis queue itself creates: for demo and tests, never run on an attached database."""

TASKS_DDL = """
CREATE TABLE tasks (
    id TEXT PRIMARY KEY,
    func_path TEXT,
    args TEXT,
    kwargs TEXT,
    status TEXT,
    schedule TEXT,
    eta TEXT,
    max_retries INTEGER,
    timeout INTEGER,
    attempts INTEGER,
    created_at TEXT,
    updated_at TEXT,
    last_attempt_at TEXT,
    error TEXT
);
CREATE TABLE results (
    task_id TEXT PRIMARY KEY,
    status TEXT,
    result TEXT,
    error TEXT,
    finished_at TEXT,
    attempts INTEGER,
    last_attempt_at TEXT
);
"""
"""What the contract queue itself creates."""

ASYNC_COLUMNS = (
    "task_id", "task_type", "entity_id", "status", "attempts", "next_run_at", "last_error", "created_at", "updated_at",
)
TASK_COLUMNS = (
    "id", "func_path", "args", "kwargs", "status", "schedule", "eta", "max_retries", "timeout", "attempts",
    "created_at", "updated_at", "last_attempt_at", "error",
)
RESULT_COLUMNS = ("task_id", "status", "result", "error", "finished_at", "attempts", "last_attempt_at")

ASYNC_POLICY = RetryPolicy(
    max_attempts=4,
    backoff=FixedDelays((timedelta(minutes=5), timedelta(minutes=15), timedelta(minutes=60))),
    stuck_after=timedelta(seconds=360),
)
"""The analysis queue's own numbers: a first try and three retries; stuck a minute after its timeout."""


def decide_async_discard(
    facts: Facts, verdict: Verdict, operation: Operation, policy: RetryPolicy, now: datetime  # noqa: ARG001
) -> Decision:
    """The usual rule, but no FAILED task is discarded: this queue has no other status for a task it has given up."""
    return Decision(GIVEN_UP) if facts.phase is Phase.FAILED else decide_discard(verdict.condition)


ASYNC_TASKS = QueueTable(
    table=columns_of("async_tasks", *ASYNC_COLUMNS),
    key="task_id",
    type="task_type",
    status="status",
    statuses={"FAILED": Phase.FAILED, "PENDING": Phase.READY, "RUNNING": Phase.RUNNING, "DONE": Phase.DONE},
    attempts="attempts",
    error="last_error",
    due="next_run_at",
    needs_due=True,
    created="created_at",
    updated="updated_at",
    counts_executions=True,
    references=("entity_id",),
    reclaims=True,
    index=("status", "next_run_at"),
    requeue=RequeueRule(
        guard=("status", "attempts", "updated_at", "created_at"),
        changes_on_every_transition="updated_at",
        # The error stays as evidence until a worker overwrites it.
        assigns={"status": "PENDING", "next_run_at": StoredTime.DUE, "updated_at": StoredTime.NOW},
        resets={"attempts": 0},
    ),
    # As its own code ends a task. No worker takes a FAILED task, and none can complete a task that is not RUNNING.
    discard=DiscardRule(assigns={"status": "FAILED", "updated_at": StoredTime.NOW}, decide=decide_async_discard),
)


def async_tasks(types: Sequence[str], throughput: Throughput) -> QueueTable:
    """The declaration of `async_tasks` for workers that take these types, this fast."""
    assert ASYNC_TASKS.requeue is not None
    return replace(
        ASYNC_TASKS,
        predict=lambda row: predict_task(row, "next_run_at", types, needs_due=True),
        requeue=replace(ASYNC_TASKS.requeue, throughput=throughput),
    )


_TASKS = columns_of("tasks", *TASK_COLUMNS)
_RESULTS = columns_of("results", *RESULT_COLUMNS)


def _error() -> Expression:
    """The message a person needs: the result's error, else the task's own unless that is JSON's null."""
    nothing: tuple[Expression, ...] = (sa.literal_column("''"), sa.literal_column("'null'"))
    blanks: Expression = sa.literal_column("' ' || char(9, 10, 11, 12, 13)")
    own = sa.case((sa.func.trim(_TASKS.c.error, blanks).in_(nothing), sa.null()), else_=_TASKS.c.error)
    return sa.func.coalesce(sa.func.nullif(sa.cast(_RESULTS.c.error, sa.Text), ""), own)


TASKS = contract.task_table(
    table=_TASKS,
    source=_TASKS.outerjoin(_RESULTS, _RESULTS.c.task_id == _TASKS.c.id),
    requires=(_RESULTS,),
    error=_error(),
    predict=lambda row: predict_task(row, "eta", needs_due=False),
    finished=_RESULTS.c.finished_at,
    recorded=_RESULTS.c.attempts,
    references=("func_path",),
    index=("status", "eta"),
    requeue=RequeueRule(
        guard=("status", "attempts", "updated_at", "created_at"),
        changes_on_every_transition="updated_at",
        # A worker reads the eta from the schedule. The result's row stays as evidence.
        assigns={
            "status": "PENDING", "eta": StoredTime.DUE, "schedule": contract.with_eta, "updated_at": StoredTime.NOW,
        },
        resets={"attempts": 0},
        decide=contract.decide,
        flags=contract.FLAGS,
    ),
    discard=DiscardRule(assigns={"status": contract.CANCELLED, "updated_at": StoredTime.NOW}),
)
