"""What trail tests are made of: a held clock, small plans, and an override carried some way."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from console.core.backend import Action, Flag, Order
from console.core.override import ItemOutcome
from console.core.packing import FIRST_BLOCKED, Block, PlanRow, pack
from console.core.plan import Confirmation, Plan, PlanHash, Share, Whence, Who
from console.core.release import Over, Release
from console.trail.owner import owner_token
from console.trail.record import stamp
from console.trail.storage import Writing
from console.trail.store import TrailBook, open_book

START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
YES = Confirmation(Who(1000, "ann", "Ann A."), Whence("host", "pts/1", "10.0.0.9", 4711, "0.1.0"), "disk is back", 3, "OPS-7")


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
        raise AssertionError("the book never waits by the clock")


@contextmanager
def book_at(url: str, clock: Any = None, *, read_only: bool = False, anchor: str | None = None) -> Iterator[TrailBook]:
    book = open_book(url, read_only=read_only, anchor=anchor, clock=clock or FrozenClock())
    try:
        yield book
    finally:
        book.close()


def plan_rows(changes: int, blocked: int = 0, backend: str = "queue") -> list[PlanRow]:
    rows = [PlanRow(n, f"{backend}/{n:06d}", f"{n:06d}", f'["FAILED",{n}]', None) for n in range(changes)]
    refused = range(FIRST_BLOCKED, FIRST_BLOCKED + blocked)
    return rows + [PlanRow(n, f"{backend}/b{n}", f"b{n}", "[]", "is running") for n in refused]


def packed(*rows: PlanRow) -> list[Block]:
    """What changes in one block, what is blocked in another."""
    parts = [[row for row in rows if row.blocked is None], [row for row in rows if row.blocked is not None]]
    return [pack(part[0].ordinal, *zip(*([v for v in row[1:] if v is not None] for row in part), strict=True)) for part in parts if part]


def make_plan(
    rows: Sequence[PlanRow], *, places: Sequence[str] = ("/srv/queue.db tasks",), created: datetime = START,
    release: Release | None = None, plan_id: str | None = None,
) -> Plan:
    changes = sum(row.blocked is None for row in rows)
    shares = tuple(
        Share(f"queue-{n}", place, 0, len(rows) if n == 0 else 0, changes if n == 0 else 0, ("status",))
        for n, place in enumerate(places)
    )
    plan = Plan(
        plan_id or f"p{secrets.token_hex(5)}", created, created + timedelta(minutes=15),
        Order(Action.REQUEUE, flags=frozenset({Flag.CLEAR_TERMINAL, Flag.WAKE_TASK})),
        release or Over(timedelta(minutes=30)), 'condition:terminal error~"\x1b[31m"', shares,
        {"terminal": changes}, {"7f3a": changes}, {"is running": 1}, {"late": 2},
    )
    digest = PlanHash()
    for block in packed(*rows):
        digest.add(block)
    return replace(plan, hash=digest.seal(plan))


def sealed(book: TrailBook, changes: int = 6, **options: Any) -> Plan:
    rows = plan_rows(changes)
    plan = make_plan(rows, **options)
    book.add_blocks(plan.id, packed(*rows))
    book.seal(plan)
    return plan


def begun(book: TrailBook, op_id: str = "op1", owner: str | None = None, now: datetime = START, **options: Any) -> tuple[Plan, str]:
    """A sealed plan, begun; the plan and its owner."""
    plan, owner = sealed(book, **options), owner or owner_token()
    book.begin(op_id, plan, YES, owner, now)
    return plan, owner


def chunk(first: int, last: int) -> dict[str, Any]:
    return {"backend": "queue", "ranges": [[first, last]], "at": START.isoformat()}


def results(first: int, last: int, outcome: str = "changed", detail: str = "") -> list[ItemOutcome]:
    return [ItemOutcome(n, f"queue/{n:06d}", outcome, detail) for n in range(first, last + 1)]


def silent(book: TrailBook) -> None:
    """Every owner was last heard of more than a minute ago, by whichever clock the trail goes."""

    def work(writing: Writing) -> int:
        return writing.run("UPDATE lease SET heartbeat = ?", (stamp(writing.now(START) - timedelta(seconds=61)),))

    book._storage.write(work)


def carried(book: TrailBook, op_id: str = "op1", chunks: int = 3, size: int = 2, **options: Any) -> Plan:
    """An override with so many concluded chunks, still running."""
    plan, owner = begun(book, op_id, changes=chunks * size, **options)
    for number in range(chunks):
        first, last = number * size, number * size + size - 1
        seq = book.intend(op_id, owner, chunk(first, last), START)
        book.conclude(op_id, owner, seq, results(first, last), {"backend": "queue"}, START)
    return plan
