"""The tables of the queues with a preset, with their column types, enums, checks and unique indexes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import UUID

from pgqueuer.adapters.persistence.qb import QueryBuilderEnvironment
from procrastinate.schema import SchemaManager

from console.core.policy import PolicyOverride
from console.testing import Harness, Sample
from plugins.sql_table.presets import preset
from tests.plugins.sql_table.world import (
    NOW,
    PAYLOAD,
    Add,
    Queue,
    as_json,
    harness,
    instant,
    mysql_queue,
    naive,
    number,
    postgres_queue,
    some_time,
    sqlite_queue,
    text,
)

Parts = tuple[str, ...]
SCHEMAS = Path(__file__).with_name("schemas")


@dataclass(frozen=True)
class System:
    """One queue: its tables, and how a sample is stored in them."""

    preset: str
    add: Add
    statuses: Sequence[str]
    table: str
    touch: str
    key: Sequence[str] = ("id",)
    references: str | None = None
    others: Sequence[str] = ()

    @property
    def ddl(self) -> str:
        """As the system creates its tables; Procrastinate's and PgQueuer's are the real package's own."""
        if self.preset == "procrastinate":
            return SchemaManager.get_schema()
        if self.preset == "pgqueuer":
            return QueryBuilderEnvironment().build_install_query()
        return (SCHEMAS / f"{self.preset}.sql").read_text()

    @contextmanager
    def queue(self, **options: Any) -> Iterator[Queue]:
        given = {"preset": self.preset, **options}
        with ExitStack() as stack:
            if self.preset.endswith("_sqlite"):
                folder = Path(stack.enter_context(TemporaryDirectory()))
                yield stack.enter_context(sqlite_queue(folder / "queue.db", self.ddl, given))
            elif self.preset.endswith("_mysql"):
                yield stack.enter_context(mysql_queue(self.ddl, given))
            else:
                yield stack.enter_context(postgres_queue(self.ddl, given))

    def harness(self, queue: Queue, policy: PolicyOverride) -> Harness:
        return harness(
            queue, self.add, self.statuses, policy=policy, table=self.table, key=self.key, references=self.references,
            others=self.others, touch=self.touch,
        )


def in_range(sample: Sample, low: int = 0, most: int = 30_000) -> int:
    found = number(sample.attempts, most)
    return low if found is None else max(found, low)


# --- River --------------------------------------------------------------------------------------------------

RIVER_STATES = ("available", "cancelled", "completed", "discarded", "pending", "retryable", "running", "scheduled")


def add_river(queue: Queue, sample: Sample, n: int) -> Parts | None:
    state = sample.status if sample.status in RIVER_STATES else RIVER_STATES[n % len(RIVER_STATES)]
    attempts, error = in_range(sample), text(sample.error)
    final = some_time(sample.updated) if state in ("cancelled", "completed", "discarded") else None
    errors = None if error is None else [as_json({"at": NOW.isoformat(), "attempt": 1, "error": "first", "trace": ""}),
                                         as_json({"at": NOW.isoformat(), "attempt": attempts, "error": error})]
    queue.run(
        "INSERT INTO river_job (state, attempt, max_attempts, attempted_at, created_at, finalized_at, scheduled_at, args,"
        " errors, kind, queue) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?::text[]::jsonb[], ?, ?)",
        [state, attempts, max(number(sample.max_attempts, 2**15 - 1) or 25, 1), instant(sample.updated),
         some_time(sample.created), final, some_time(sample.due), as_json({"x": PAYLOAD}), errors,
         text(sample.type) or "job", sample.reference or "default"],
    )
    return ("",)


# --- Oban ---------------------------------------------------------------------------------------------------

OBAN_STATES = ("available", "scheduled", "suspended", "executing", "retryable", "completed", "discarded", "cancelled")


def add_oban(queue: Queue, sample: Sample, n: int) -> Parts | None:
    state = sample.status if sample.status in OBAN_STATES else OBAN_STATES[n % len(OBAN_STATES)]
    attempts, error = in_range(sample), text(sample.error)
    most = max(number(sample.max_attempts, 30_000) or 20, attempts, 1)
    errors = [] if error is None else [as_json({"at": "2026-11-10T11:00:00.000000Z", "attempt": attempts, "error": error})]
    over = {"completed": "completed_at", "discarded": "discarded_at", "cancelled": "cancelled_at"}.get(state)
    queue.run(
        "INSERT INTO oban_jobs (state, queue, worker, args, errors, attempt, max_attempts, inserted_at, scheduled_at,"
        " attempted_at) VALUES (?, ?, ?, ?, ?::text[]::jsonb[], ?, ?, ?, ?, ?)",
        [state, sample.reference or "default", text(sample.type) or "job", as_json({"x": PAYLOAD}), errors, attempts,
         most, naive(some_time(sample.created)), naive(some_time(sample.due)), naive(sample.updated)],
    )
    if over:
        queue.run(f"UPDATE oban_jobs SET {over} = ? WHERE id = (SELECT max(id) FROM oban_jobs)", [naive(NOW)])
    return ("",)


# --- GoodJob ------------------------------------------------------------------------------------------------



def add_good_job(queue: Queue, sample: Sample, n: int) -> Parts | None:
    id = str(UUID(int=n * 7_919 + 1, version=4))
    state = ("queued", "discarded", "finished", "retried")[n % 4]
    error = text(sample.error) if state != "finished" else None
    if state == "discarded" and error is None:
        error = "RuntimeError: no message"
    over = naive(some_time(sample.updated)) if state in ("discarded", "finished") else None
    attempts = number(sample.attempts, 30_000)
    params = {"job_class": "X", "arguments": [PAYLOAD], **({} if attempts is None else {"executions": max(attempts, 0)})}
    queue.insert(
        "good_jobs", id=id, active_job_id=id, queue_name=sample.reference, serialized_params=as_json(params),
        scheduled_at=naive(sample.due), performed_at=naive(sample.updated) if over else None, finished_at=over,
        error=error, created_at=naive(some_time(sample.created)), updated_at=naive(some_time(sample.updated)),
        executions_count=attempts, job_class=text(sample.type), error_event=None, is_discrete=True,
    )
    return (id,)


# --- Solid Queue --------------------------------------------------------------------------------------------

SOLID_PLACES = ("ready", "scheduled", "claimed", "blocked", "failed")


def add_solid_queue(queue: Queue, sample: Sample, n: int) -> Parts | None:
    made, place = naive(some_time(sample.created)), (*SOLID_PLACES, "finished", "failed", "nowhere")[n % 8]
    attempts = number(sample.attempts, 30_000)
    arguments = {"job_class": "X", "arguments": [PAYLOAD], "executions": max(attempts or 0, 0), "exception_executions": {}}
    ((id,),) = queue.run(
        "INSERT INTO solid_queue_jobs (queue_name, class_name, arguments, finished_at, concurrency_key, created_at,"
        " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING id",
        [sample.reference or "default", text(sample.type) or "", as_json(arguments),
         naive(NOW) if place == "finished" else None, "one" if n % 11 == 0 else None, made,
         naive(some_time(sample.updated))],
    )
    solid_execution(queue, id, place, sample, made)
    return (str(id),)


def solid_execution(queue: Queue, id: int, place: str, sample: Sample, at: Any) -> None:
    more: dict[str, Any] = {"job_id": id, "created_at": at}
    if place in ("ready", "scheduled", "blocked"):
        more["queue_name"] = "default"
    if place == "scheduled":
        more["scheduled_at"] = naive(some_time(sample.due))
    if place == "blocked":
        more |= {"concurrency_key": "one", "expires_at": at}
    if place == "failed":
        error = text(sample.error)
        stored = as_json({"exception_class": "E", "message": error, "backtrace": ["a.rb:1"]})
        more["error"] = error if id % 3 == 0 else stored
    if place in SOLID_PLACES:
        queue.insert(f"solid_queue_{place}_executions", **more)


# --- Procrastinate ------------------------------------------------------------------------------------------

PROCRASTINATE_STATES = ("todo", "doing", "succeeded", "failed", "cancelled", "aborted", "aborting")


def add_procrastinate(queue: Queue, sample: Sample, n: int) -> Parts | None:
    status = sample.status if sample.status in PROCRASTINATE_STATES else PROCRASTINATE_STATES[n % 7]
    queue.run("SET session_replication_role = replica", [])  # its triggers would write events of their own
    ((id,),) = queue.run(
        "INSERT INTO procrastinate_jobs (queue_name, task_name, args, status, scheduled_at, attempts)"
        " VALUES (?, ?, ?, ?::procrastinate_job_status, ?, ?) RETURNING id",
        [sample.reference or "default", text(sample.type) or "", as_json({"x": PAYLOAD}), status, instant(sample.due),
         number(sample.attempts, 30_000) or 0],
    )
    for type, at in (("deferred", sample.created), ("started", sample.updated)):
        if instant(at):
            queue.insert("procrastinate_events", job_id=id, type=type, at=at)
    queue.run("SET session_replication_role = origin", [])
    return (str(id),)


# --- Que ----------------------------------------------------------------------------------------------------



def add_que(queue: Queue, sample: Sample, n: int) -> Parts | None:
    place = ("queued", "finished", "expired", "errored")[n % 4]
    error = text(sample.error)
    ((id,),) = queue.run(
        "INSERT INTO que_jobs (run_at, job_class, error_count, last_error_message, queue, finished_at, expired_at, args,"
        " job_schema_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 2) RETURNING id",
        [some_time(sample.due), text(sample.type) or "", number(sample.attempts, 2**30) or 0, error and error[:500],
         sample.reference or "default", some_time(sample.updated) if place == "finished" else None,
         some_time(sample.updated) if place == "expired" else None, as_json([PAYLOAD])],
    )
    return (str(id),)


# --- delayed_job --------------------------------------------------------------------------------------------



def add_delayed_job(queue: Queue, sample: Sample, n: int) -> Parts | None:
    place = ("queued", "failed", "locked", "errored")[n % 4]
    name = (text(sample.type) or "").strip()
    wrapped = f"--- !ruby/object:ActiveJob::JobWrapper\njob_data:\n  job_class: {name}\n  arguments: [{PAYLOAD}]\n"
    plain = f"--- !ruby/object:{name.replace(' ', '_')}\nx: {PAYLOAD}\n"
    ((id,),) = queue.run(
        "INSERT INTO delayed_jobs (attempts, handler, last_error, run_at, locked_at, failed_at, queue, created_at,"
        " updated_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        [number(sample.attempts, 2**30) or 0, wrapped if n % 2 else plain, text(sample.error), naive(sample.due),
         naive(sample.updated) if place == "locked" else None,
         naive(some_time(sample.updated)) if place == "failed" else None, sample.reference, naive(sample.created),
         naive(sample.updated)],
    )
    return (str(id),)


# --- pg-boss ------------------------------------------------------------------------------------------------

PG_BOSS_STATES = ("created", "retry", "active", "completed", "cancelled", "failed")


def add_pg_boss(queue: Queue, sample: Sample, n: int) -> Parts | None:
    state = sample.status if sample.status in PG_BOSS_STATES else PG_BOSS_STATES[n % len(PG_BOSS_STATES)]
    id, name = str(UUID(int=n * 104_729 + 5, version=4)), text(sample.type) or "job"
    queue.insert(
        "pgboss.job", id=id, name=name, data=as_json({"x": PAYLOAD}), state=state,
        retry_limit=min(max(number(sample.max_attempts) or 2, 0), 2**30),
        retry_count=min(max(number(sample.attempts) or 0, 0), 2**30), start_after=some_time(sample.due),
        started_on=instant(sample.updated), singleton_key=sample.reference, created_on=some_time(sample.created),
        completed_on=instant(sample.updated) if state in ("completed", "failed") else None,
        output=None if sample.error is None else as_json({"message": text(sample.error), "stack": "at x"}),
    )
    return (name, id)


# --- Graphile Worker ----------------------------------------------------------------------------------------



def add_graphile(queue: Queue, sample: Sample, n: int) -> Parts | None:
    task = (text(sample.type) or "t")[:128]
    queue.run("INSERT INTO graphile_worker._private_tasks (identifier) VALUES (?) ON CONFLICT DO NOTHING", [task])
    ((task_id,),) = queue.run("SELECT id FROM graphile_worker._private_tasks WHERE identifier = ?", [task])
    ((id,),) = queue.run(
        "INSERT INTO graphile_worker._private_jobs (task_id, payload, run_at, attempts, max_attempts, last_error,"
        " created_at, updated_at, key, locked_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING id",
        [task_id, as_json({"x": PAYLOAD}), some_time(sample.due), in_range(sample),
         max(number(sample.max_attempts, 30_000) or 25, 1), text(sample.error), some_time(sample.created),
         some_time(sample.updated), f"key {n} {sample.reference}", instant(sample.updated) if n % 5 == 0 else None],
    )
    return (str(id),)


# --- PgQueuer -----------------------------------------------------------------------------------------------

PGQUEUER_STATES = ("queued", "picked", "failed")


def add_pgqueuer(queue: Queue, sample: Sample, n: int) -> Parts | None:
    state = PGQUEUER_STATES[n % 3]
    ((id,),) = queue.run(
        "INSERT INTO pgqueuer (priority, created, updated, heartbeat, execute_after, status, entrypoint, dedupe_key, payload,"
        " attempts) VALUES (0, ?, ?, ?, ?, ?::pgqueuer_status, ?, ?, ?, ?) RETURNING id",
        [some_time(sample.created), some_time(sample.updated), some_time(sample.updated), some_time(sample.due), state,
         text(sample.type) or "", f"{sample.reference} {n}", PAYLOAD.encode(), max(number(sample.attempts, 2**30) or 0, 0)],
    )
    if sample.error is not None:
        traceback = {"exception_type": "E", "exception_message": text(sample.error), "traceback": "…"}
        queue.run("INSERT INTO pgqueuer_log (job_id, status, priority, entrypoint, traceback) VALUES (?, 'queued', 0, 'x', ?)",
                  [id, as_json(traceback)])
    return (str(id),)


# --- BullMQ on PostgreSQL -----------------------------------------------------------------------------------

BULLMQ_STATES = ("waiting", "active", "completed", "failed", "delayed", "waiting-children")


def millis(value: Any) -> int | None:
    at = instant(value)
    return None if at is None else int(at.timestamp() * 1000)


def add_bullmq(queue: Queue, sample: Sample, n: int) -> Parts | None:
    state = sample.status if sample.status in BULLMQ_STATES else BULLMQ_STATES[n % len(BULLMQ_STATES)]
    name, id = sample.reference or "mail", f"job{n}"
    attempts = max(number(sample.attempts, 2**30) or 0, 0)
    queue.insert(
        "bullmq.job", queue=name, id=id, seq=n, name=text(sample.type) or "", state=state, data=as_json({"x": PAYLOAD}),
        opts=as_json({"removeOnFail": {"age": 60 * n}} if n % 5 == 0 else {}), attempts_made=attempts, attempts_started=attempts,
        max_attempts=max(number(sample.max_attempts, 2**30) or 1, 1), failed_reason=text(sample.error),
        added_at_ms=millis(some_time(sample.created)), process_at_ms=millis(sample.due) if state == "delayed" else None,
        processed_at_ms=millis(sample.updated), locked_until_ms=millis(NOW) if state == "active" else None,
        finished_at_ms=millis(sample.updated) if state in ("completed", "failed") else None,
        parent_id="of a flow" if n % 17 == 0 else None,
    )
    return (name, id)


# --- DBOS ---------------------------------------------------------------------------------------------------

DBOS_STATES = ("PENDING", "SUCCESS", "ERROR", "MAX_RECOVERY_ATTEMPTS_EXCEEDED", "CANCELLED", "ENQUEUED", "DELAYED")


def add_dbos(queue: Queue, sample: Sample, n: int) -> Parts | None:
    state = sample.status if sample.status in DBOS_STATES else DBOS_STATES[n % len(DBOS_STATES)]
    id, error = f"workflow-{n}", text(sample.error)
    queue.insert(
        "dbos.workflow_status", workflow_uuid=id, status=state, name=text(sample.type) or "", queue_name=sample.reference,
        recovery_attempts=number(sample.attempts), created_at=millis(some_time(sample.created)),
        updated_at=millis(some_time(sample.updated)), started_at_epoch_ms=millis(sample.updated),
        delay_until_epoch_ms=millis(sample.due), inputs=PAYLOAD, application_version="v1", executor_id="local",
        serialization="py_pickle" if n % 2 else "portable_json",
    )
    if error is not None:
        queue.insert("dbos.workflow_output", workflow_uuid=id, error=error)
    return (id,)


# --- Laravel ------------------------------------------------------------------------------------------------

LARAVEL_STATES = ("queued", "reserved", "released")


def laravel_payload(sample: Sample, n: int) -> str:
    tries = number(sample.max_attempts, 99_999)
    given = {"uuid": f"uuid-{n}", "displayName": text(sample.type) or "", "maxTries": tries if tries and tries > 0 else None,
             "data": {"command": PAYLOAD}}
    return json.dumps(given, separators=(",", ":"), ensure_ascii=False)


def add_laravel(queue: Queue, sample: Sample, n: int) -> Parts | None:
    seconds = lambda value: min(int(value.timestamp()), 2**31 - 1)  # noqa: E731
    ((id,),) = queue.run(
        "INSERT INTO jobs (queue, payload, attempts, reserved_at, available_at, created_at) VALUES (?, ?, ?, ?, ?, ?) RETURNING id",
        [sample.reference or "default", laravel_payload(sample, n), in_range(sample),
         seconds(some_time(sample.updated)) if n % 3 == 1 else None, seconds(some_time(sample.due)), seconds(some_time(sample.created))],
    )
    return (str(id),)


def add_laravel_failed(queue: Queue, sample: Sample, n: int) -> Parts | None:
    queue.insert(
        "failed_jobs", uuid=f"uuid-{n}", connection="database", queue=sample.reference or "default",
        payload=laravel_payload(sample, n), exception=text(sample.error) or "", failed_at=naive(some_time(sample.updated)),
    )
    return (f"uuid-{n}",)


SYSTEMS = {
    "river": System("river", add_river, RIVER_STATES, "river_job", "attempt = attempt + 1, state = 'running',"
                    " finalized_at = NULL", references="queue"),
    "oban": System("oban", add_oban, OBAN_STATES, "oban_jobs",
                   "attempt = attempt + 1, max_attempts = max_attempts + 1, state = 'executing'", references="queue"),
    "good_job": System("good_job", add_good_job, ("a", "b", "c", "d"), "good_jobs",
                       "executions_count = coalesce(executions_count, 0) + 1, performed_at = now()",
                       references="queue_name"),
    "solid_queue": System("solid_queue", add_solid_queue, SOLID_PLACES, "solid_queue_jobs",
                          "finished_at = now()", references="queue_name",
                          others=tuple(f"solid_queue_{place}_executions" for place in SOLID_PLACES)),
    "solid_queue_sqlite": System("solid_queue_sqlite", add_solid_queue, SOLID_PLACES, "solid_queue_jobs",
                                 "finished_at = '2026-11-10 12:00:00'", references="queue_name",
                                 others=tuple(f"solid_queue_{place}_executions" for place in SOLID_PLACES)),
    "solid_queue_mysql": System("solid_queue_mysql", add_solid_queue, SOLID_PLACES, "solid_queue_jobs",
                                "finished_at = now()", references="queue_name",
                                others=tuple(f"solid_queue_{place}_executions" for place in SOLID_PLACES)),
    "delayed_job_mysql": System("delayed_job_mysql", add_delayed_job, ("a", "b", "c", "d"), "delayed_jobs",
                                "attempts = attempts + 1, locked_at = now()", references="queue"),
    "procrastinate": System("procrastinate", add_procrastinate, PROCRASTINATE_STATES, "procrastinate_jobs",
                            "status = 'doing', attempts = attempts + 1", references="queue_name"),
    "pgqueuer": System("pgqueuer", add_pgqueuer, PGQUEUER_STATES, "pgqueuer",
                       "status = 'picked', attempts = attempts + 1, updated = now()", references="dedupe_key"),
    "que": System("que", add_que, ("a", "b", "c", "d"), "que_jobs", "error_count = error_count + 1",
                  references="queue"),
    "delayed_job": System("delayed_job", add_delayed_job, ("a", "b", "c", "d"), "delayed_jobs",
                          "attempts = attempts + 1, locked_at = now()", references="queue"),
    "pg_boss": System("pg_boss", add_pg_boss, PG_BOSS_STATES, "pgboss.job",
                      "retry_count = retry_count + 1, state = 'active'", key=("name", "id"),
                      references="singleton_key"),
    "graphile_worker": System("graphile_worker", add_graphile, ("a", "b", "c", "d"),
                              "graphile_worker._private_jobs", "locked_at = now(), attempts = attempts + 1",
                              references="key"),
    "bullmq_postgres": System("bullmq_postgres", add_bullmq, BULLMQ_STATES, "bullmq.job",
                              "state = 'active', attempts_started = attempts_started + 1", key=("queue", "id"), references="queue"),
    "dbos": System("dbos", add_dbos, DBOS_STATES, "dbos.workflow_status",
                   "status = 'PENDING', recovery_attempts = recovery_attempts + 1", key=("workflow_uuid",), references="queue_name"),
    "laravel": System("laravel", add_laravel, LARAVEL_STATES, "jobs", "attempts = attempts + 1, reserved_at = 1", references="queue"),
    "laravel_mysql": System("laravel_mysql", add_laravel, LARAVEL_STATES, "jobs", "attempts = attempts + 1, reserved_at = 1",
                            references="queue"),
    "laravel_failed": System("laravel_failed", add_laravel_failed, ("failed",), "failed_jobs", "queue = 'x'", key=("uuid",),
                             references="queue"),
    "laravel_failed_mysql": System("laravel_failed_mysql", add_laravel_failed, ("failed",), "failed_jobs", "queue = 'x'",
                                   key=("uuid",), references="queue"),
}
CHANGEABLE = tuple(name for name in SYSTEMS if preset(name).requeue is not None)
"""The others can only be read."""
