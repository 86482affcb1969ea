"""Custom tables, with the mappings that read them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from console.testing import Sample
from tests.plugins.sql_table.world import NOW, PAYLOAD, Queue, as_json, instant, naive, number, text

# A queue in SQLite with text times, an integer key and words no SQL parser likes.
MAIL_DDL = '''
CREATE TABLE "order" (
    "group" INTEGER PRIMARY KEY,
    "select" TEXT NOT NULL,
    tries INTEGER,
    most INTEGER,
    "when" TEXT,
    "what went ""wrong""" TEXT,
    "größe" TEXT,
    made TEXT,
    changed TEXT,
    body TEXT
);
CREATE INDEX by_state ON "order" ("select", "when");
'''
MAIL = """
table: order
key: group
status: {column: select, ready: [queued], running: [sending], failed: [bounced], done: [sent], cancelled: [dropped]}
type: größe
attempts: tries
max_attempts: most
next_run: when
error: 'what went "wrong"'
created: made
updated: changed
stuck_after: 10m
requeue:
  conditions: [failed, terminal, retrying, stuck]
  guard: [select, tries, changed]
  set: {select: queued, when: {time: due}, changed: {time: now}}
  attempts:
    keep: {effect: last_try}
    reset: {effect: reset, set: {tries: 0}}
discard:
  set: {select: dropped, changed: {time: now}}
"""
MAIL_STATUSES = ("queued", "sending", "bounced", "sent", "dropped")


def add_mail(queue: Queue, sample: Sample, n: int) -> tuple[str, ...]:
    def stored(value: Any) -> Any:
        return value.isoformat() if isinstance(value, datetime) else value

    values = {
        "group": n + 1, "select": sample.status or "", "tries": sample.attempts, "most": sample.max_attempts,
        "when": stored(sample.due), 'what went ""wrong""': sample.error, "größe": sample.type,
        "made": stored(sample.created), "changed": stored(sample.updated), "body": PAYLOAD,
    }
    names = ", ".join(f'"{name}"' for name in values)
    marks = ", ".join("CAST(? AS TEXT)" if isinstance(value, str) else "?" for value in values.values())
    stored_as = [v.encode("utf-8", "surrogateescape") if isinstance(v, str) else v for v in values.values()]
    queue.run(f'INSERT INTO "order" ({names}) VALUES ({marks})', stored_as)
    return (str(n + 1),)


# A queue in PostgreSQL: two columns make the key, seconds since 1970, numbers for states, the error in JSON.
SYNC_DDL = """
CREATE SCHEMA sync;
CREATE TABLE sync.runs (
    tenant text NOT NULL,
    "run no" int NOT NULL,
    state int NOT NULL,
    tries int,
    due_at bigint,
    result jsonb,
    started bigint,
    PRIMARY KEY (tenant, "run no")
);
"""
SYNC = """
schema: sync
table: runs
key: [tenant, run no]
status: {column: state, ready: [0], running: [1], failed: [3], done: [2]}
type: tenant
attempts: tries
max_attempts: 3
next_run: {column: due_at, when_null: now}
error: {column: result, as: json, message: [code, message]}
updated: started
times: epoch
stuck_after: 1h
requeue:
  guard: [state, tries]
  set: {state: 0, due_at: {time: due}}
  attempts: {reset: {effect: reset, set: {tries: 0}}, keep: {effect: last_try}}
discard: {conditions: [failed, retrying, stuck, terminal], delete: true}
"""
SYNC_STATUSES = ("0", "1", "2", "3")


def add_sync(queue: Queue, sample: Sample, n: int) -> tuple[str, ...]:
    state = int(sample.status) if sample.status in SYNC_STATUSES else 9
    due, began = instant(sample.due), instant(sample.updated)
    tenant = text(sample.id) or ""
    result = None if sample.error is None else as_json({"message": text(sample.error), "code": ""})
    queue.insert(
        "sync.runs", tenant=tenant, **{"run no": n}, state=state, tries=number(sample.attempts, 2**30),
        due_at=None if due is None else int(due.timestamp()), result=result,
        started=None if began is None else int(began.timestamp()),
    )
    return (tenant, str(n))


# A queue in MySQL: a key of text whose collation ignores case, times in microseconds.
TASKS_DDL = """
CREATE TABLE tasks (
    tenant varchar(190) NOT NULL,
    `run no` int unsigned NOT NULL,
    state varchar(20),
    tries bigint,
    most bigint,
    due datetime(6),
    error longtext,
    kind varchar(300),
    made datetime(6),
    changed datetime(6) NOT NULL,
    payload longtext,
    PRIMARY KEY (tenant, `run no`),
    KEY by_state (state, due)
) ENGINE=InnoDB CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci
"""
TASKS = """
table: tasks
key: [tenant, run no]
status: {column: state, ready: [queued], running: [sending], failed: [bounced], done: [sent], cancelled: [dropped]}
type: kind
attempts: tries
max_attempts: most
next_run: due
error: error
created: made
updated: changed
stuck_after: 10m
requeue:
  conditions: [failed, terminal, retrying, stuck]
  guard: [state, tries, changed]
  set: {state: queued, due: {time: due}, changed: {time: now}}
  attempts:
    keep: {effect: last_try}
    reset: {effect: reset, set: {tries: 0}}
"""


def add_task(queue: Queue, sample: Sample, n: int) -> tuple[str, ...]:
    tenant = text(sample.id) or ""
    queue.insert(
        "tasks", tenant=tenant, **{"run no": n}, state=text(sample.status), tries=number(sample.attempts, 2**62),
        most=number(sample.max_attempts, 2**62), due=naive(sample.due), error=text(sample.error), kind=text(sample.type),
        made=naive(sample.created), changed=naive(sample.updated) or naive(NOW), payload=PAYLOAD,
    )
    return (tenant, str(n))
