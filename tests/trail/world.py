"""What trail tests are made of: a held clock, small plans, and an override carried some way."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from console.core.backend import Action, Operation
from console.core.confirm import Confirmation, Origin, Who
from console.core.override import ItemOutcome
from console.core.pace import Over, Pace
from console.core.plan import FIRST_SKIPPED, BackendPart, Block, Plan, PlanHash, PlanRow, pack
from console.sql.sqlite import driver_of
from console.trail.leases import owner_token
from console.trail.record import stamp
from console.trail.storage import Writing
from console.trail.store import TrailStore, open_trail

START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
YES = Confirmation(Who(1000, "ann", "Ann A."), Origin("host", "pts/1", "10.0.0.9", 4711, "0.1.0"), "disk is back", 3, "OPS-7")


class FrozenClock:
    def __init__(self) -> None:
        self.moment = START

    def now(self) -> datetime:
        return self.moment

    def sleep(self, seconds: float) -> None:
        self.moment += timedelta(seconds=seconds)


class RealClock:
    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        raise AssertionError("the trail never waits by the clock")


@contextmanager
def trail_at(url: str, clock: Any = None, *, read_only: bool = False, anchor: str | None = None) -> Iterator[TrailStore]:
    trail = open_trail(url, read_only=read_only, anchor=anchor, clock=clock or FrozenClock())
    try:
        yield trail
    finally:
        trail.close()


def plan_rows(changes: int, skipped: int = 0, backend: str = "queue") -> list[PlanRow]:
    rows = [PlanRow(n, f"{backend}/{n:06d}", f"{n:06d}", ("FAILED", n), None) for n in range(changes)]
    refused = range(FIRST_SKIPPED, FIRST_SKIPPED + skipped)
    return rows + [PlanRow(n, f"{backend}/b{n}", f"b{n}", (), "is running") for n in refused]


def packed(*rows: PlanRow) -> list[Block]:
    """What changes in one block, what is blocked in another."""
    pieces = [[row for row in rows if row.skipped is None], [row for row in rows if row.skipped is not None]]
    return [pack(piece[0].ordinal, *zip(*(row[1:] for row in piece), strict=True)) for piece in pieces if piece]


def make_plan(
    rows: Sequence[PlanRow], *, places: Sequence[str] = ("/srv/queue.db tasks",), created: datetime = START,
    pace: Pace | None = None, nonce: str | None = None,
) -> Plan:
    changes = sum(row.skipped is None for row in rows)
    parts = tuple(
        BackendPart(f"queue-{n}", place, 0, len(rows) if n == 0 else 0, changes if n == 0 else 0, ("status",))
        for n, place in enumerate(places)
    )
    plan = Plan(
        nonce or secrets.token_hex(16), created, created + timedelta(minutes=15),
        Operation(Action.REQUEUE, flags=frozenset({"include_terminal_partitions", "wake_task"})),
        pace or Over(timedelta(minutes=30)), 'condition:terminal error~"\x1b[31m"', parts,
        {"terminal": changes}, {"7f3a": changes}, {"is running": 1}, {"late": 2},
    )
    digest = PlanHash()
    for block in packed(*rows):
        digest.add(block)
    return replace(plan, hash=digest.seal(plan))


def sealed(trail: TrailStore, changes: int = 6, **options: Any) -> Plan:
    rows = plan_rows(changes)
    plan = make_plan(rows, **options)
    trail.add_blocks(plan.nonce, packed(*rows))
    trail.seal(plan)
    return plan


def begun(trail: TrailStore, override_id: str = "op1", owner: str | None = None, now: datetime = START, **options: Any) -> tuple[Plan, str]:
    """A sealed plan, begun; the plan and its owner."""
    plan, owner = sealed(trail, **options), owner or owner_token()
    trail.begin(override_id, plan, YES, owner, now)
    return plan, owner


def chunk(first: int, last: int) -> dict[str, Any]:
    return {"backend": "queue", "ranges": [[first, last]], "at": START.isoformat()}


def results(first: int, last: int, outcome: str = "applied", detail: str = "") -> list[ItemOutcome]:
    return [ItemOutcome(n, f"queue/{n:06d}", outcome, detail) for n in range(first, last + 1)]


def silent(trail: TrailStore) -> None:
    """The last heartbeat of every owner is more than a minute old, by the clock that the trail uses."""

    def work(writing: Writing) -> int:
        return writing.run("UPDATE lease SET heartbeat = ?", (stamp(writing.now(START) - timedelta(seconds=61)),))

    trail._storage.write(work)


def carried(trail: TrailStore, override_id: str = "op1", chunks: int = 3, size: int = 2, **options: Any) -> Plan:
    """An override with so many concluded chunks, still running."""
    plan, owner = begun(trail, override_id, changes=chunks * size, **options)
    for number in range(chunks):
        first, last = number * size, number * size + size - 1
        seq = trail.intend(override_id, owner, chunk(first, last), START)
        trail.conclude(override_id, owner, seq, results(first, last), {"backend": "queue"}, START)
    return plan


def writing_connection(trail: TrailStore) -> sqlite3.Connection:
    """The driver's connection that writes a trail file; the pool keeps it."""
    with trail._storage._writer.connect() as connection:  # type: ignore[attr-defined]
        return driver_of(connection)
