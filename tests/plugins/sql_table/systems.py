"""The tables of the systems the presets are for: column types, enums, checks and unique indexes as they have them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from console.core.policy import PolicyOverride
from console.testing import Harness, Sample
from tests.plugins.sql_table.world import (
    NOW,
    PAYLOAD,
    Add,
    Queue,
    as_json,
    harness,
    instant,
    naive,
    number,
    postgres_queue,
    some_time,
    text,
)

Parts = tuple[str, ...]


@dataclass(frozen=True)
class System:
    """One system: its tables, and how a sample is stored in them."""

    preset: str
    ddl: str
    add: Add
    statuses: Sequence[str]
    table: str
    touch: str
    key: Sequence[str] = ("id",)
    references: str | None = None
    others: Sequence[str] = ()
    schema: Callable[[], str] | None = None

    @contextmanager
    def queue(self, **options: Any) -> Iterator[Queue]:
        ddl = self.ddl if self.schema is None else self.schema()
        with postgres_queue(ddl, {"preset": self.preset, **options}) as queue:
            yield queue

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
RIVER = """
CREATE TYPE river_job_state AS ENUM
    ('available', 'cancelled', 'completed', 'discarded', 'pending', 'retryable', 'running', 'scheduled');
CREATE FUNCTION river_job_state_in_bitmask(bitmask bit(8), state river_job_state) RETURNS boolean
    LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE state WHEN 'available' THEN get_bit(bitmask, 7) WHEN 'cancelled' THEN get_bit(bitmask, 6)
        WHEN 'completed' THEN get_bit(bitmask, 5) WHEN 'discarded' THEN get_bit(bitmask, 4)
        WHEN 'pending' THEN get_bit(bitmask, 3) WHEN 'retryable' THEN get_bit(bitmask, 2)
        WHEN 'running' THEN get_bit(bitmask, 1) WHEN 'scheduled' THEN get_bit(bitmask, 0) ELSE 0 END = 1 $$;
CREATE TABLE river_job (
    id bigserial PRIMARY KEY,
    state river_job_state NOT NULL DEFAULT 'available',
    attempt smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL,
    attempted_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    finalized_at timestamptz,
    scheduled_at timestamptz NOT NULL DEFAULT now(),
    priority smallint NOT NULL DEFAULT 1,
    args jsonb NOT NULL,
    attempted_by text[],
    errors jsonb[],
    kind text NOT NULL,
    metadata jsonb NOT NULL DEFAULT '{}',
    queue text NOT NULL DEFAULT 'default',
    tags varchar(255)[] NOT NULL DEFAULT '{}',
    unique_key bytea,
    unique_states bit(8),
    CONSTRAINT finalized_or_finalized_at_null CHECK (
        (finalized_at IS NULL AND state NOT IN ('cancelled', 'completed', 'discarded'))
        OR (finalized_at IS NOT NULL AND state IN ('cancelled', 'completed', 'discarded'))),
    CONSTRAINT max_attempts_is_positive CHECK (max_attempts > 0),
    CONSTRAINT priority_in_range CHECK (priority >= 1 AND priority <= 4),
    CONSTRAINT queue_length CHECK (char_length(queue) > 0 AND char_length(queue) < 128),
    CONSTRAINT kind_length CHECK (char_length(kind) > 0 AND char_length(kind) < 128)
);
CREATE INDEX river_job_kind ON river_job USING btree (kind);
CREATE INDEX river_job_state_and_finalized_at_index ON river_job (state, finalized_at) WHERE finalized_at IS NOT NULL;
CREATE INDEX river_job_prioritized_fetching_index ON river_job (state, queue, priority, scheduled_at, id);
CREATE INDEX river_job_args_index ON river_job USING gin (args);
CREATE UNIQUE INDEX river_job_unique_idx ON river_job (unique_key)
    WHERE unique_key IS NOT NULL AND unique_states IS NOT NULL
        AND river_job_state_in_bitmask(unique_states, state);
"""


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

OBAN_STATES = ("available", "scheduled", "executing", "retryable", "completed", "discarded", "cancelled")
OBAN = """
CREATE TYPE oban_job_state AS ENUM
    ('available', 'scheduled', 'executing', 'retryable', 'completed', 'discarded', 'cancelled');
CREATE TABLE oban_jobs (
    id bigserial PRIMARY KEY,
    state oban_job_state NOT NULL DEFAULT 'available',
    queue text NOT NULL DEFAULT 'default',
    worker text NOT NULL,
    args jsonb NOT NULL DEFAULT '{}',
    errors jsonb[] NOT NULL DEFAULT ARRAY[]::jsonb[],
    attempt integer NOT NULL DEFAULT 0,
    max_attempts integer NOT NULL DEFAULT 20,
    inserted_at timestamp without time zone NOT NULL DEFAULT timezone('UTC', now()),
    scheduled_at timestamp without time zone NOT NULL DEFAULT timezone('UTC', now()),
    attempted_at timestamp without time zone,
    completed_at timestamp without time zone,
    attempted_by text[],
    discarded_at timestamp without time zone,
    priority integer NOT NULL DEFAULT 0,
    tags text[] DEFAULT ARRAY[]::text[],
    meta jsonb DEFAULT '{}',
    cancelled_at timestamp without time zone,
    CONSTRAINT attempt_range CHECK (attempt >= 0 AND attempt <= max_attempts),
    CONSTRAINT positive_max_attempts CHECK (max_attempts > 0),
    CONSTRAINT non_negative_priority CHECK (priority >= 0),
    CONSTRAINT queue_length CHECK (char_length(queue) > 0 AND char_length(queue) < 128),
    CONSTRAINT worker_length CHECK (char_length(worker) > 0 AND char_length(worker) < 128)
);
CREATE INDEX oban_jobs_state_queue_priority_scheduled_at_id_index
    ON oban_jobs (state, queue, priority, scheduled_at, id);
CREATE INDEX oban_jobs_args_index ON oban_jobs USING gin (args);
CREATE INDEX oban_jobs_meta_index ON oban_jobs USING gin (meta);
"""


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

GOOD_JOB = """
CREATE TABLE good_jobs (
    id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    queue_name text,
    priority integer,
    serialized_params jsonb,
    scheduled_at timestamp(6) without time zone,
    performed_at timestamp(6) without time zone,
    finished_at timestamp(6) without time zone,
    error text,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL,
    active_job_id uuid,
    concurrency_key text,
    cron_key text,
    retried_good_job_id uuid,
    cron_at timestamp(6) without time zone,
    batch_id uuid,
    batch_callback_id uuid,
    is_discrete boolean,
    executions_count integer,
    job_class text,
    error_event smallint,
    labels text[],
    locked_by_id uuid,
    locked_at timestamp(6) without time zone
);
CREATE TABLE good_job_executions (
    id uuid NOT NULL DEFAULT gen_random_uuid() PRIMARY KEY,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL,
    active_job_id uuid NOT NULL,
    job_class text,
    queue_name text,
    serialized_params jsonb,
    scheduled_at timestamp(6) without time zone,
    finished_at timestamp(6) without time zone,
    error text,
    error_event smallint,
    error_backtrace text[],
    process_id uuid,
    duration interval
);
CREATE INDEX index_good_job_executions_on_active_job_id_and_created_at
    ON good_job_executions (active_job_id, created_at);
CREATE INDEX index_good_jobs_on_scheduled_at ON good_jobs (scheduled_at) WHERE finished_at IS NULL;
CREATE INDEX index_good_jobs_jobs_on_finished_at ON good_jobs (finished_at)
    WHERE retried_good_job_id IS NULL AND finished_at IS NOT NULL;
CREATE UNIQUE INDEX index_good_jobs_on_cron_key_and_cron_at_cond ON good_jobs (cron_key, cron_at)
    WHERE cron_key IS NOT NULL;
"""


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
SOLID_QUEUE = """
CREATE TABLE solid_queue_jobs (
    id bigserial PRIMARY KEY,
    queue_name character varying NOT NULL,
    class_name character varying NOT NULL,
    arguments text,
    priority integer NOT NULL DEFAULT 0,
    active_job_id character varying,
    scheduled_at timestamp(6) without time zone,
    finished_at timestamp(6) without time zone,
    concurrency_key character varying,
    created_at timestamp(6) without time zone NOT NULL,
    updated_at timestamp(6) without time zone NOT NULL
);
CREATE INDEX index_solid_queue_jobs_on_finished_at ON solid_queue_jobs (finished_at);
CREATE TABLE solid_queue_ready_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    queue_name character varying NOT NULL, priority integer NOT NULL DEFAULT 0,
    created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_scheduled_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    queue_name character varying NOT NULL, priority integer NOT NULL DEFAULT 0,
    scheduled_at timestamp(6) without time zone NOT NULL, created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_claimed_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    process_id bigint, created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_blocked_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    queue_name character varying NOT NULL, priority integer NOT NULL DEFAULT 0, concurrency_key character varying NOT NULL,
    expires_at timestamp(6) without time zone NOT NULL, created_at timestamp(6) without time zone NOT NULL);
CREATE TABLE solid_queue_failed_executions (
    id bigserial PRIMARY KEY, job_id bigint NOT NULL REFERENCES solid_queue_jobs ON DELETE CASCADE,
    error text, created_at timestamp(6) without time zone NOT NULL);
CREATE UNIQUE INDEX ON solid_queue_ready_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_scheduled_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_claimed_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_blocked_executions (job_id);
CREATE UNIQUE INDEX ON solid_queue_failed_executions (job_id);
"""


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
        told = as_json({"exception_class": "E", "message": error, "backtrace": ["a.rb:1"]})
        more["error"] = error if id % 3 == 0 else told
    if place in SOLID_PLACES:
        queue.insert(f"solid_queue_{place}_executions", **more)


# --- Procrastinate ------------------------------------------------------------------------------------------

PROCRASTINATE_STATES = ("todo", "doing", "succeeded", "failed", "cancelled", "aborted", "aborting")


def procrastinate_schema() -> str:
    """The real package's own."""
    from procrastinate.schema import SchemaManager

    return SchemaManager.get_schema()


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

QUE = """
CREATE TABLE que_jobs (
    priority smallint NOT NULL DEFAULT 100,
    run_at timestamptz NOT NULL DEFAULT now(),
    id bigserial PRIMARY KEY,
    job_class text NOT NULL,
    error_count integer NOT NULL DEFAULT 0,
    last_error_message text,
    queue text NOT NULL DEFAULT 'default',
    last_error_backtrace text,
    finished_at timestamptz,
    expired_at timestamptz,
    args jsonb NOT NULL DEFAULT '[]',
    data jsonb NOT NULL DEFAULT '{}',
    job_schema_version integer NOT NULL,
    kwargs jsonb NOT NULL DEFAULT '{}',
    CONSTRAINT error_length CHECK (char_length(last_error_message) <= 500 AND char_length(last_error_backtrace) <= 10000),
    CONSTRAINT job_class_length CHECK (char_length(job_class) <= 200),
    CONSTRAINT queue_length CHECK (char_length(queue) <= 100),
    CONSTRAINT valid_args CHECK (jsonb_typeof(args) = 'array')
);
CREATE INDEX que_poll_idx ON que_jobs (queue, priority, run_at, id) WHERE finished_at IS NULL AND expired_at IS NULL;
"""


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

DELAYED_JOB = """
CREATE TABLE delayed_jobs (
    id bigserial PRIMARY KEY,
    priority integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    handler text NOT NULL,
    last_error text,
    run_at timestamp(6) without time zone,
    locked_at timestamp(6) without time zone,
    failed_at timestamp(6) without time zone,
    locked_by character varying,
    queue character varying,
    created_at timestamp(6) without time zone,
    updated_at timestamp(6) without time zone
);
CREATE INDEX delayed_jobs_priority ON delayed_jobs (priority, run_at);
"""


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
PG_BOSS = """
CREATE SCHEMA pgboss;
CREATE TYPE pgboss.job_state AS ENUM ('created', 'retry', 'active', 'completed', 'cancelled', 'failed');
CREATE TABLE pgboss.job (
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    name text NOT NULL,
    priority integer NOT NULL DEFAULT 0,
    data jsonb,
    state pgboss.job_state NOT NULL DEFAULT 'created',
    retry_limit integer NOT NULL DEFAULT 2,
    retry_count integer NOT NULL DEFAULT 0,
    retry_delay integer NOT NULL DEFAULT 0,
    retry_backoff boolean NOT NULL DEFAULT false,
    start_after timestamptz NOT NULL DEFAULT now(),
    started_on timestamptz,
    singleton_key text,
    singleton_on timestamp without time zone,
    expire_in interval NOT NULL DEFAULT interval '15 minutes',
    created_on timestamptz NOT NULL DEFAULT now(),
    completed_on timestamptz,
    keep_until timestamptz NOT NULL DEFAULT now() + interval '14 days',
    output jsonb,
    dead_letter text,
    policy text
) PARTITION BY LIST (name);
ALTER TABLE pgboss.job ADD PRIMARY KEY (name, id);
CREATE TABLE pgboss.jcommon PARTITION OF pgboss.job DEFAULT;
CREATE UNIQUE INDEX job_i1 ON pgboss.jcommon (name, coalesce(singleton_key, ''))
    WHERE state = 'created' AND policy = 'short';
CREATE UNIQUE INDEX job_i2 ON pgboss.jcommon (name, coalesce(singleton_key, ''))
    WHERE state = 'active' AND policy = 'singleton';
CREATE UNIQUE INDEX job_i3 ON pgboss.jcommon (name, state, coalesce(singleton_key, ''))
    WHERE state <= 'active' AND policy = 'stately';
CREATE INDEX job_i5 ON pgboss.jcommon (name, start_after) INCLUDE (priority, created_on, id) WHERE state < 'active';
"""


def add_pg_boss(queue: Queue, sample: Sample, n: int) -> Parts | None:
    state = sample.status if sample.status in PG_BOSS_STATES else PG_BOSS_STATES[n % 6]
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

GRAPHILE = """
CREATE SCHEMA graphile_worker;
CREATE TABLE graphile_worker._private_tasks (
    id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    identifier text NOT NULL UNIQUE CHECK (length(identifier) <= 128));
CREATE TABLE graphile_worker._private_job_queues (
    id int PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    queue_name text NOT NULL UNIQUE CHECK (length(queue_name) <= 128),
    locked_at timestamptz, locked_by text,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL) STORED NOT NULL);
CREATE TABLE graphile_worker._private_jobs (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    job_queue_id int,
    task_id int NOT NULL,
    payload json NOT NULL DEFAULT '{}',
    priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempts smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 25 CONSTRAINT jobs_max_attempts_check CHECK (max_attempts >= 1),
    last_error text,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    key text UNIQUE CONSTRAINT jobs_key_check CHECK (length(key) > 0 AND length(key) <= 512),
    locked_at timestamptz,
    locked_by text,
    revision integer NOT NULL DEFAULT 0,
    flags jsonb,
    is_available boolean GENERATED ALWAYS AS (locked_at IS NULL AND attempts < max_attempts) STORED NOT NULL
);
CREATE INDEX jobs_main_index ON graphile_worker._private_jobs (priority, run_at) INCLUDE (id, task_id, job_queue_id)
    WHERE is_available = true;
CREATE FUNCTION graphile_worker.reschedule_jobs(
    job_ids bigint[], run_at timestamptz DEFAULT NULL, priority integer DEFAULT NULL, attempts integer DEFAULT NULL,
    max_attempts integer DEFAULT NULL
) RETURNS SETOF graphile_worker._private_jobs LANGUAGE sql AS $$
    UPDATE graphile_worker._private_jobs AS jobs SET
        run_at = coalesce(reschedule_jobs.run_at, jobs.run_at),
        priority = coalesce(reschedule_jobs.priority::smallint, jobs.priority),
        attempts = coalesce(reschedule_jobs.attempts::smallint, jobs.attempts),
        max_attempts = coalesce(reschedule_jobs.max_attempts::smallint, jobs.max_attempts),
        updated_at = now()
    WHERE id = ANY (job_ids) AND (locked_at IS NULL OR locked_at < now() - interval '4 hours') RETURNING *
$$;
"""


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


SYSTEMS = {
    "river": System("river", RIVER, add_river, RIVER_STATES, "river_job", "attempt = attempt + 1, state = 'running',"
                    " finalized_at = NULL", references="queue"),
    "oban": System("oban", OBAN, add_oban, OBAN_STATES, "oban_jobs",
                   "attempt = attempt + 1, max_attempts = max_attempts + 1, state = 'executing'", references="queue"),
    "good_job": System("good_job", GOOD_JOB, add_good_job, ("a", "b", "c", "d"), "good_jobs",
                       "executions_count = coalesce(executions_count, 0) + 1, performed_at = now()",
                       references="queue_name"),
    "solid_queue": System("solid_queue", SOLID_QUEUE, add_solid_queue, SOLID_PLACES, "solid_queue_jobs",
                          "finished_at = now()", references="queue_name",
                          others=tuple(f"solid_queue_{place}_executions" for place in SOLID_PLACES)),
    "procrastinate": System("procrastinate", "", add_procrastinate, PROCRASTINATE_STATES, "procrastinate_jobs",
                            "status = 'doing', attempts = attempts + 1", references="queue_name",
                            schema=procrastinate_schema),
    "que": System("que", QUE, add_que, ("a", "b", "c", "d"), "que_jobs", "error_count = error_count + 1",
                  references="queue"),
    "delayed_job": System("delayed_job", DELAYED_JOB, add_delayed_job, ("a", "b", "c", "d"), "delayed_jobs",
                          "attempts = attempts + 1, locked_at = now()", references="queue"),
    "pg_boss": System("pg_boss", PG_BOSS, add_pg_boss, PG_BOSS_STATES, "pgboss.job",
                      "retry_count = retry_count + 1, state = 'active'", key=("name", "id"),
                      references="singleton_key"),
    "graphile_worker": System("graphile_worker", GRAPHILE, add_graphile, ("a", "b", "c", "d"),
                              "graphile_worker._private_jobs", "locked_at = now(), attempts = attempts + 1",
                              references="key"),
}
