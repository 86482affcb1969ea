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


SYSTEMS = {
    "river": System("river", RIVER, add_river, RIVER_STATES, "river_job", "attempt = attempt + 1, state = 'running',"
                    " finalized_at = NULL", references="queue"),
}

__all__ = ["SYSTEMS", "UUID", "System", "naive"]
