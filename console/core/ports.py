"""What core needs from outside: a clock, a way to be stopped, and the book in which overrides are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TextIO

if TYPE_CHECKING:
    from console.core.audit import Record, Verification
    from console.core.override import Intent, ItemOutcome, Override, OverrideState, Request
    from console.core.packing import Block, PlanRows
    from console.core.plan import Confirmation, Plan


class Clock(Protocol):
    """Time, so that tests can hold it."""

    def now(self) -> datetime:
        """Aware, in UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Stop(Protocol):
    """Somebody may ask for an end; whoever works looks here between two steps."""

    @property
    def requested(self) -> bool: ...


class Never:
    """A Stop that is never requested."""

    requested = False


class Book(Protocol):
    """The trail: plans, overrides and an append-only chain of records. Whatever returns is durable.

    Every method that writes raises `TrailUnavailable` when it cannot be sure the write will last (full,
    read-only, gone, replaced, hung), and `TrailBroken` when the chain it would append to is not intact.
    """

    # Plans: working data, kept while an override may need it.

    def add_blocks(self, plan_id: str, blocks: Sequence[Block]) -> None:
        """Rows of a plan that is being proposed."""

    def seal(self, plan: Plan) -> None:
        """The plan is complete; its rows never change again."""

    def discard(self, plan_id: str) -> None:
        """Forget a plan that was not sealed or has expired unapplied."""

    def plan(self, plan_id: str) -> Plan:
        """`NoSuchPlan` when there is none. A unique prefix of the id is enough."""

    def blocks(self, plan_id: str, first: int, last: int) -> Iterator[Block]:
        """As they are stored: every block with a row that has one of these ordinals, in order."""

    def rows(self, plan_id: str, first: int, last: int) -> Iterator[PlanRows]:
        """The rows with these ordinals, both included, in order, streamed in batches."""

    # Overrides.

    def begin(self, op_id: str, plan: Plan, confirmation: Confirmation, owner: str, now: datetime) -> None:
        """Lease every backend of the plan to `owner` and record the confirmation, or change nothing and
        raise `OverrideRunning`; `PlanStale` when the plan was begun before."""

    def take_over(self, op_id: str, owner: str, now: datetime, confirmation: Confirmation) -> None:
        """Lease the backends of a stopped or abandoned override again, on record. `OverrideRunning` while
        its owner is alive: heard of within the last minute and, on this host, still a process."""

    def intend(self, op_id: str, owner: str, body: Mapping[str, Any], now: datetime) -> int:
        """Record an intent if `owner` still holds the lease; returns its sequence number.

        `body` holds at least `backend`, `ranges` (pairs of ordinals) and `at` (the backend's clock, as ISO text),
        from which `intents` makes an `Intent` again. `LeaseLost` when the lease is someone else's.
        """

    def conclude(
        self,
        op_id: str,
        owner: str,
        intent: int,
        outcomes: Sequence[ItemOutcome],
        body: Mapping[str, Any],
        now: datetime,
    ) -> None:
        """Record what became of an intent, item by item; `ItemOutcomes` where there are many.

        Whoever announced it may do so without the lease, and even after another has settled it: then what it has
        changed beyond that is added. Of anybody else: `LeaseLost` when the lease is not theirs, `PlanStale` when
        the intent is concluded already.
        """

    def beat(self, op_id: str, owner: str, now: datetime) -> Request | None:
        """Keep the lease alive; what somebody asks of this override, if they do."""

    def ask(self, op_id: str, request: Request) -> None:
        """Ask a running override to pause, stop or continue, from any process."""

    def mark(
        self, op_id: str, state: OverrideState, note: str, now: datetime, *, owner: str | None = None
    ) -> None:
        """Record a change of state; a stopped or finished override gives its leases back and is anchored.
        With an `owner`, `LeaseLost` when the override is not theirs any more."""

    def override(self, op_id: str) -> Override:
        """`NoSuchOverride` when there is none. A unique prefix of the id is enough."""

    def overrides(self, limit: int | None = None) -> Sequence[Override]:
        """Newest first."""

    def confirmed_hash(self, op_id: str) -> str:
        """The hash of the plan that was confirmed for this override, which is named in full.
        `TrailBroken` when there is no record of that."""

    def outcomes(self, op_id: str) -> Iterator[Sequence[ItemOutcome]]:
        """All outcomes of an override in the order they were recorded, streamed in batches."""

    def intents(self, op_id: str) -> Sequence[Intent]:
        """All intents of an override, in order."""

    def open_intents(self, op_id: str) -> Sequence[Intent]:
        """The intents of an override that have no outcome yet."""

    def unresolved(self) -> Sequence[Intent]:
        """Intents without an outcome whose owner is not alive."""

    # Records.

    def refuse(self, body: Mapping[str, Any], now: datetime) -> None:
        """Record that something was refused, and why."""

    def records(self, *, after: int = 0, limit: int = 1_000) -> Sequence[Record]:
        """Records in order, from the one after `after`."""

    def newest(self, *, before: int | None = None, limit: int = 100) -> Sequence[Record]:
        """Records newest first, from the one before `before`."""

    def verified(self, anchors: str | None = None) -> Verification:
        """Whether the whole trail is what was written; with a file of anchors, also at its end."""

    def export(self, out: TextIO, form: str, *, items: bool = False) -> int:
        """Every record as `jsonl` or `csv`, with its item outcomes if asked for; how many records."""

    def close(self) -> None:
        """Let go of the store."""

    def history_of(self, key: str) -> Sequence[tuple[datetime, str]]:
        """What this trail did to one item: when, and in words."""
