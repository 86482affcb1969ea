"""What core needs from outside: a clock, a way to be stopped, and the trail."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TextIO, runtime_checkable

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from console.core.access import AccessRules
    from console.core.confirm import Confirmation, Origin, Who
    from console.core.override import Intent, ItemOutcome, Override, OverrideState, Request
    from console.core.plan import Block, Digests, Plan, PlanRow
    from console.core.proposals import Proposal, ProposalState
    from console.core.recovery import ItemResult


_MISSING_SHOWN = 5


class Record(NamedTuple):
    """One record of the trail."""

    seq: int
    kind: str
    at: datetime
    body: dict[str, Any]
    prev: str
    hash: str


def latest_time(at: datetime, body: Mapping[str, Any]) -> datetime:
    """The latest time on the trail up to a record, which says how far its own clock was behind that."""
    try:
        return at + timedelta(seconds=body.get("clock_behind", 0))
    except (TypeError, OverflowError):  # an edited record
        return at


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the trail is intact. If not: the first bad record, and what is wrong with it."""

    ok: bool
    records: int
    first_bad: int | None = None
    what: str = ""
    anchors: tuple[int, ...] = ()
    """The records that were compared with an anchor, in order."""
    anchors_missing: tuple[int, ...] = ()
    """The records whose anchor was written to a file, according to the trail, but is not among the anchors given."""

    @property
    def anchor_summary(self) -> str:
        """Which anchors were found, and what could be cut off unnoticed."""
        if not self.anchors:
            return "No anchor was found. If the end of the trail had been cut off, this check would not notice."
        total, last = len(self.anchors) + len(self.anchors_missing), self.anchors[-1]
        text = f"{len(self.anchors)} of {total} anchors found, the last of record {last}."
        if self.anchors_missing:
            shown = ", ".join(map(str, self.anchors_missing[:_MISSING_SHOWN]))
            more = len(self.anchors_missing) - _MISSING_SHOWN
            text += f" Missing: of record {shown}{f' and {more} more' if more > 0 else ''}."
        after = self.records - last
        return f"{text} {after} records follow it; they could be cut off unnoticed." if after > 0 else text


class Clock(Protocol):
    """A clock, so that tests can set the time."""

    def now(self) -> datetime:
        """The time, aware and in UTC."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class Stop(Protocol):
    """A request to stop. Long work looks at it between two steps."""

    @property
    def requested(self) -> bool: ...


@runtime_checkable
class HangsUp(Stop, Protocol):
    """A Stop that knows whether the terminal is gone. Then nobody wanted the work to stop."""

    terminal_gone: bool


class Never:
    """A Stop that is never requested."""

    requested = False


class PlanStore(Protocol):
    """Keeps a plan while it is made, and afterwards."""

    def add_blocks(self, nonce: str, blocks: Sequence[Block]) -> None:
        """Store rows of a plan that is being made. Its id is not known yet."""

    def seal(self, plan: Plan) -> None:
        """Store the plan as complete; its rows never change again."""

    def discard(self, plan_id: str) -> None:
        """Forget a plan that was not applied, by its id or, before it is sealed, by its nonce."""


class Trail(PlanStore, Protocol):
    """The trail: plans, overrides and an append-only chain of records. A write is durable when its method returns.

    Every method that writes raises `TrailUnavailable` when the write may not last (disk full, read-only, file gone or
    replaced, server hung), and `TrailBroken` when the chain it would append to is not intact.
    """

    # Plans are kept while an override may need them.

    def record_plan(self, plan: Plan, who: Who, origin: Origin, now: datetime) -> None:
        """Record a sealed plan. One that is confirmed without this is recorded then."""

    def planned(self, plan_id: str) -> tuple[str, datetime] | None:
        """The hash and the expiry of a plan according to its record; None if it is not recorded."""

    def discard(self, plan_id: str) -> None:
        """Forget a plan that was not applied, by its id or, before it is sealed, by its nonce. If it was recorded, that
        is recorded too."""

    def plan(self, plan_id: str) -> Plan:
        """`NoSuchPlan` when there is none. A unique prefix of the id is enough."""

    def blocks(self, plan_id: str, first: int, last: int) -> Iterator[Block]:
        """The stored blocks that contain any of these ordinals, in order."""

    def rows(self, plan_id: str, first: int, last: int) -> Iterator[Sequence[PlanRow]]:
        """The rows with these ordinals, both included, in order, streamed in batches."""

    def holding(self, plan_id: str, digests: Digests) -> AbstractContextManager[None]:
        """Until the block ends, reading other rows of this plan than these raises `PlanAltered`."""

    # Proposals.

    def submit(
        self, plan: Plan, who: Who, origin: Origin, reason: str, ticket: str | None, now: datetime, *,
        rules: AccessRules, client: str | None = None,
    ) -> Proposal:
        """Record a sealed plan as a proposal. `PlanStale` when it was submitted or applied before."""

    def decline(
        self, proposal: Proposal, state: ProposalState, who: Who, origin: Origin, reason: str, now: datetime
    ) -> None:
        """Record that an open proposal was rejected or withdrawn. `PlanStale` when it was decided meanwhile."""

    def proposal(self, plan_id: str) -> Proposal:
        """`NoSuchProposal` when there is none. A unique prefix of the id is enough."""

    def proposals(self, limit: int | None = None) -> Sequence[Proposal]:
        """Newest first."""

    # Overrides.

    def begin(
        self, override_id: str, plan: Plan, confirmation: Confirmation, owner: str, now: datetime, *,
        rules: AccessRules, proposal: Proposal | None = None, detached: bool = False,
    ) -> None:
        """Lease every backend of the plan to `owner` and record the confirmation. Raises `OverrideRunning` when one is
        leased already, `PlanStale` when the plan was applied before, and `NotAllowed` above a limit of the rules; then
        nothing is changed. With a `proposal`, this is its approval. A `detached` override is queued without a lease."""

    def take_over(self, override_id: str, owner: str, now: datetime, confirmation: Confirmation) -> None:
        """Lease the backends of a stopped or abandoned override again, and record that. `OverrideRunning` while its
        owner is alive: with a heartbeat in the last minute and, on this host, an existing process."""

    def intend(self, override_id: str, owner: str, body: Mapping[str, Any], now: datetime) -> int:
        """Record an intent if `owner` still holds the lease. Returns its sequence number.

        `body` contains at least `backend`, `ranges` (pairs of ordinals) and `at` (the backend's clock as ISO text),
        from which `intents` makes an `Intent` again. `LeaseLost` when somebody else has the lease.
        """

    def conclude(
        self,
        override_id: str,
        owner: str,
        intent: int,
        outcomes: Sequence[ItemOutcome],
        body: Mapping[str, Any],
        now: datetime,
    ) -> None:
        """Record the outcome of an intent, item by item.

        The process that announced the intent may always do this, even without the lease or after another process has
        settled it; then the changes that the other did not see are added. For any other process: `LeaseLost` without
        the lease, `PlanStale` when the intent is concluded already.
        """

    def beat(self, override_id: str, owner: str, now: datetime) -> Request | None:
        """Keep the lease alive. Returns what another process asks of this override, if anything."""

    def ask(self, override_id: str, request: Request, who: Who, origin: Origin) -> None:
        """Ask a running override to pause, stop or continue, from any process. Records who asked."""

    def mark(
        self, override_id: str, state: OverrideState, note: str, now: datetime, *, owner: str | None = None
    ) -> None:
        """Record a change of state. Stopping and finishing also release the leases and write an anchor.
        With an `owner`, raises `LeaseLost` when that process no longer has the lease."""

    def add_result(
        self,
        override_id: str,
        results: Callable[[], Iterator[Sequence[ItemResult]]],
        body: Mapping[str, Any],
        now: datetime,
    ) -> bool:
        """Record the results of an override's items, with `results` item by item in the plan's order.

        Returns False, and records nothing, if there is a result already or the override has not ended. When it is
        resumed, it may have another result afterwards.
        """

    def item_results(self, override_id: str) -> Iterator[Sequence[ItemResult]]:
        """The recorded results of an override's items, streamed in batches; none if there is no result yet."""

    def override(self, override_id: str) -> Override:
        """`NoSuchOverride` when there is none. A unique prefix of the id is enough."""

    def overrides(self, limit: int | None = None) -> Sequence[Override]:
        """Newest first."""

    def unattended(self) -> Sequence[Override]:
        """Overrides that should go on but have no living process, oldest first: queued ones, running ones whose process
        is gone, and those that stopped because their terminal was gone."""

    def confirmed_hash(self, override_id: str) -> str:
        """The hash of the plan that was confirmed for this override (its full id).
        `TrailBroken` when there is no record of that."""

    def outcomes(self, override_id: str) -> Iterator[Sequence[ItemOutcome]]:
        """All outcomes of an override in the order they were recorded, streamed in batches."""

    def item_outcomes(self, seq: int) -> Iterator[Sequence[ItemOutcome]]:
        """The item outcomes that belong to one record, streamed in batches."""

    def intents(self, override_id: str) -> Sequence[Intent]:
        """All intents of an override, in order."""

    def open_intents(self, override_id: str) -> Sequence[Intent]:
        """The intents of an override that have no outcome yet."""

    def unresolved(self) -> Sequence[Intent]:
        """Intents without an outcome whose owner is not alive."""

    # Records.

    def refuse(self, body: Mapping[str, Any], now: datetime) -> None:
        """Record that something was refused, and why."""

    def records(self, *, after: int = 0, limit: int = 1_000) -> Sequence[Record]:
        """Records in order, from the one after `after`."""

    def change_cause(self, body: Mapping[str, Any], now: datetime) -> None:
        """Record what somebody decided about a cause. The body names it by its signature."""

    def records_of(self, kinds: Sequence[str], *, after: int = 0, limit: int = 1_000) -> Sequence[Record]:
        """Records of these kinds in order, from the one after `after`. An index serves it."""

    def newest(self, *, before: int | None = None, limit: int = 100) -> Sequence[Record]:
        """Records newest first, from the one before `before`."""

    def verified(self, anchors: str | None = None) -> Verification:
        """Whether the whole trail is intact. With a file of anchors, its end is checked too."""

    def exposed(self) -> str:
        """Who besides its owner could write this trail, as a clause; empty if nobody."""

    def owning_role(self) -> str:
        """The database role in use, if it may drop the rules that the trail's database keeps; empty if not."""

    def export(self, out: TextIO, form: str, *, items: bool = False) -> int:
        """Write every record as `jsonl` or `csv`, with its item outcomes if `items`. Returns the number of records."""

    def close(self) -> None:
        """Close the store."""

    def history_of(self, key: str) -> Sequence[tuple[datetime, str]]:
        """What overrides did to one item: when, and a sentence."""
