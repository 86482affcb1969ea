"""The only door to a write: propose, confirm and carry out, resume, stop, undo.

Nothing reaches a backend except as a frozen plan, confirmed by a named person with a reason, and announced
on a durable record before the write and after it. Terminal and command line both come in here.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from console.core.backend import (
    Action,
    Authority,
    Backend,
    Change,
    Draft,
    Order,
    OutcomeKind,
    Requeues,
    UndoKind,
    image_text,
)
from console.core.carrying import Carrier, Ended
from console.core.faults import (
    AllBlocked,
    BackendFault,
    Fault,
    NoSuchOverride,
    NoSuchPlan,
    NotConfirmed,
    OverrideRunning,
    PlanAltered,
    PlanExpired,
    PlanStale,
    ReadOnlyRefused,
    Refused,
    TrailBroken,
    TrailUnavailable,
    Unreachable,
    UsageFault,
)
from console.core.limits import Limits
from console.core.override import NOT_APPLIED, Intent, Override, OverrideState, Progress, Request
from console.core.packing import FIRST_BLOCKED, PlanRows
from console.core.person import Whence, Who
from console.core.plan import Confirmation, Plan, PlanHash, Selection, Share
from console.core.ports import Book, Clock, Never, Stop
from console.core.proposing import Proposal, Proposer, new_plan_id
from console.core.release import Now, Release
from console.core.settling import foreseen, rows_of, settle, units_of

Watcher = Callable[[Progress], None]
_ALTERED = "Propose again; do not apply it. Run `retriage trail verify`."


def _unwatched(_progress: Progress) -> None:
    return


class Operations:
    """What an operator can do to the attached backends, and under which rules."""

    def __init__(
        self,
        backends: Mapping[str, Backend],
        book: Book,
        clock: Clock,
        *,
        limits: Limits | None = None,
        read_only: bool = False,
        owner: str = "",
        reach: Callable[[str], None] = lambda _point: None,
    ) -> None:
        self.backends = backends
        self.book = book
        self.limits = limits or Limits()
        self.read_only = read_only
        self._clock = clock
        self._owner = owner or secrets.token_hex(8)
        self._reach = reach

    # -- propose ---------------------------------------------------------------------------------

    def propose(
        self, selection: Selection, order: Order, release: Release | None = None, stop: Stop | None = None
    ) -> Plan:
        """Freeze a plan. In audit mode it is only a preview: it is not stored and cannot be applied."""
        book = None if self.read_only else self.book
        proposer = Proposer(self.backends, book, self._clock, self.limits.max_items, stop or Never())
        return proposer.propose(selection, order, release or Now())

    def foreseen(self, plan: Plan, most: int) -> Iterator[tuple[str, Change]]:
        """What would become of the first items of a plan, were it carried out now."""
        return foreseen(self.book, plan, self._requeues, most)

    def undo(self, op_id: str, stop: Stop | None = None) -> Plan:
        """A plan that takes an override back, for the items still exactly as it left them."""
        self.require_writable()
        override = self.book.override(op_id)
        plan = self.book.plan(override.plan_id)
        if plan.order.action is Action.UNDO:
            raise PlanStale("an undo is not undone", fix="Requeue the items instead.")
        self._require_unaltered(plan)
        self._require_same(plan, override)
        stop = stop or Never()
        proposal = Proposal(self.book, new_plan_id(), self.limits.max_items)
        try:
            written = [share for share in plan.shares if share.changes]
            shares = [self._undo_share(proposal, plan, override, share, stop) for share in written]
            if stop.requested:
                raise UsageFault("proposing was stopped", fix="Nothing was stored.")
            return proposal.seal(
                Order(Action.UNDO, plan.order.budget),
                Now(),
                f"undo of {override.op_id}",
                [share for share in shares if share.selected],
                self._clock.now(),
                override.op_id,
            )
        except TrailUnavailable:
            raise
        except BaseException:
            proposal.discard()
            raise

    def _undo_share(self, proposal: Proposal, plan: Plan, override: Override, share: Share, stop: Stop) -> Share:
        first, selected = proposal.changes, proposal.selected
        changed = self._changed(plan, override.op_id)
        drafts = self._drafts_of(plan, share, changed)
        # From the last one back: of several intents for one item, the last is the one that changed it.
        for intent in reversed(self.book.intents(override.op_id)):
            if intent.backend == share.backend and not stop.requested:
                proposal.add(list(drafts(intent)))
        return Share(
            share.backend,
            share.place,
            first,
            proposal.selected - selected,
            proposal.changes - first,
            share.guard,
        )

    def _drafts_of(self, plan: Plan, share: Share, changed: bytearray) -> Callable[[Intent], Iterator[Draft]]:
        """What an undo would do to an intent's items; of a backend that is not there any more, why it cannot."""
        try:
            backend = self._requeues(share)
        except (Unreachable, PlanStale) as fault:
            why = str(fault)
            return lambda intent: (
                Draft(row.key, row.unit, "null", "requeued", None, why) for row in self._left(intent, changed)
            )
        return lambda intent: self._undo_drafts(plan, share, backend, intent, changed)

    def _left(self, intent: Intent, changed: bytearray) -> PlanRows:
        """What it has changed and no later intent has; told once."""
        planned = rows_of(self.book, intent)
        rows = planned.only([changed[ordinal] for ordinal in planned.ordinals])
        for ordinal in rows.ordinals:
            changed[ordinal] = 0
        return rows

    def _undo_drafts(
        self, plan: Plan, share: Share, backend: Requeues, intent: Intent, changed: bytearray
    ) -> Iterator[Draft]:
        rows = self._left(intent, changed)
        units = units_of(plan, share, backend, rows, intent.at)
        changes, now = units.per_row(units.changes), units.per_row(backend.images(units.changes))
        for row, change, image in zip(rows, changes, now, strict=True):
            blocked = None
            if backend.abilities.undo is UndoKind.NONE:
                blocked = "this backend cannot undo what it was told"
            elif image != change.after:
                blocked = "no longer as the override left it" if image is not None else "no longer there"
            yield Draft(row.key, row.unit, image_text((change.after, change.before)), "requeued", None, blocked)

    def _changed(self, plan: Plan, op_id: str) -> bytearray:
        changed = bytearray(plan.changes)
        for batch in self.book.outcomes(op_id):
            for outcome in batch:
                changed[outcome.ordinal] |= outcome.outcome == OutcomeKind.CHANGED
        return changed

    # -- confirm and carry out -------------------------------------------------------------------

    def carry_out(
        self, plan_id: str, confirmation: Confirmation, stop: Stop | None = None, watch: Watcher = _unwatched
    ) -> Override:
        """Apply a stored plan exactly, or report as conflicted what changed since."""
        self.require_writable()
        plan = self.book.plan(plan_id)
        try:
            self._require_unaltered(plan)
            self._require_confirmed(plan, confirmation)
            backends = self._written(plan)
            op_id = f"o{secrets.token_hex(5)}"
            self.book.begin(op_id, plan, confirmation, self._owner, self._clock.now())
        except TrailUnavailable:
            raise
        except Fault as fault:
            self._record_refusal(plan, confirmation, fault)
            raise
        authority = _authority(confirmation, op_id)
        return self._carry(plan, backends, op_id, authority, bytearray(plan.changes), stop or Never(), watch)

    def _require_unaltered(self, plan: Plan) -> None:
        hash = PlanHash()
        for first, last in ((0, plan.changes - 1), (FIRST_BLOCKED, -1)):
            for block in self.book.blocks(plan.id, first, last):
                hash.add(block)
        if hash.seal(plan) != plan.hash:
            raise PlanAltered(f"plan {plan.id}", fix=_ALTERED)

    def _require_same(self, plan: Plan, override: Override) -> None:
        """What was confirmed is on record; which plan an override has is only in a table that could be edited."""
        if plan.hash != self.book.confirmed_hash(override.op_id):
            raise PlanAltered(f"{override.op_id} was confirmed for another plan than {plan.id}", fix=_ALTERED)

    def _require_confirmed(self, plan: Plan, confirmation: Confirmation) -> None:
        now = self._clock.now()
        if now >= plan.expires_at:
            raise PlanExpired(f"it was good until {plan.expires_at:%H:%M:%S} UTC", fix="Propose again.")
        if not plan.changes:
            raise AllBlocked(fix="; ".join(plan.blocked) or "Nothing was selected.")
        if not confirmation.reason.strip():
            raise NotConfirmed("a reason is required")
        if confirmation.count is None:
            raise NotConfirmed("nobody said yes", fix=f"Confirm with --confirm {plan.changes}.")
        if confirmation.count != plan.changes:
            raise NotConfirmed(f"{confirmation.count} confirmed, but the plan changes {plan.changes}")

    def _record_refusal(self, plan: Plan, confirmation: Confirmation, fault: Fault) -> None:
        self.book.refuse(
            {
                "plan": plan.id,
                "plan_hash": plan.hash,
                "action": plan.order.action.value,
                "why": type(fault).__name__,
                "detail": fault.detail,
                "reason": confirmation.reason,
                "who": _who(confirmation.who),
                "from": _whence(confirmation.whence),
            },
            self._clock.now(),
        )

    def _carry(
        self,
        plan: Plan,
        backends: Sequence[tuple[Share, Requeues]],
        op_id: str,
        authority: Authority,
        done: bytearray,
        stop: Stop,
        watch: Watcher,
        counts: Mapping[str, int] | None = None,
    ) -> Override:
        progress = Progress(op_id, plan.changes)
        for kind, count in (counts or {}).items():
            if kind != NOT_APPLIED:
                progress.counts[OutcomeKind(kind)] += count
        carrier = Carrier(
            self.book,
            self._clock,
            stop,
            self.limits,
            plan,
            op_id,
            self._owner,
            authority,
            done=done,
            progress=progress,
            watch=watch,
            reach=self._reach,
        )
        try:
            for share, backend in backends:
                carrier.carry(share, backend)
        except Ended as end:
            self._mark(op_id, end.state, end.note)
        except BackendFault as fault:
            self._mark(op_id, OverrideState.STOPPED, str(fault))
        else:
            self._mark(op_id, OverrideState.FINISHED, progress.note)
        return self.book.override(op_id)

    def _mark(self, op_id: str, state: OverrideState, note: str) -> None:
        """Only as its owner: whoever was taken over must not end what another process now carries out."""
        self.book.mark(op_id, state, note, self._clock.now(), owner=self._owner)

    # -- resume and settle -----------------------------------------------------------------------

    def resume(
        self, op_id: str, who: Who, whence: Whence, stop: Stop | None = None, watch: Watcher = _unwatched
    ) -> Override:
        """Settle what is unresolved, then go on from the first item without an outcome."""
        self.require_writable()
        override = self.book.override(op_id)
        if override.state.over:
            raise PlanStale(f"override {override.op_id} is finished", fix="There is nothing to resume.")
        plan = self.book.plan(override.plan_id)
        self._require_unaltered(plan)
        self._require_same(plan, override)
        backends = self._written(plan)
        confirmation = Confirmation(who, whence, override.reason, plan.changes, override.ticket)
        self.book.take_over(override.op_id, self._owner, self._clock.now(), confirmation)
        try:
            self._settle(plan, override.op_id)
        except BackendFault as fault:
            self._mark(override.op_id, OverrideState.STOPPED, f"{fault}; its last items are not settled yet")
            return self.book.override(override.op_id)
        done, counts = self._done(plan, override.op_id), self.book.override(override.op_id).counts
        authority = _authority(confirmation, override.op_id)
        return self._carry(plan, backends, override.op_id, authority, done, stop or Never(), watch, counts)

    def settle_unresolved(self, who: Who, whence: Whence) -> list[Override]:
        """At start: every intent without an outcome whose process is gone is re-read and recorded.

        What cannot be settled now (its backend does not answer or is not configured, another override runs
        there) stays unresolved, and is no reason to keep anybody from starting.
        """
        self.require_writable()
        unresolved: dict[str, set[str]] = {}
        for intent in self.book.unresolved():
            unresolved.setdefault(intent.op_id, set()).add(intent.backend)
        return [
            self.book.override(op_id)
            for op_id, where in unresolved.items()
            if self._settled(op_id, where, who, whence)
        ]

    def _settled(self, op_id: str, where: set[str], who: Who, whence: Whence) -> bool:
        try:
            override = self.book.override(op_id)
            plan = self.book.plan(override.plan_id)
            self._require_unaltered(plan)
            self._require_same(plan, override)
            for share in plan.shares:
                if share.backend in where:
                    self._requeues(share).now()
            confirmation = Confirmation(who, whence, override.reason, plan.changes, override.ticket)
            self.book.take_over(op_id, self._owner, self._clock.now(), confirmation)
        except (BackendFault, NoSuchOverride, NoSuchPlan, OverrideRunning, PlanAltered, PlanStale, TrailBroken):
            return False
        try:
            self._settle(plan, op_id)
        except BackendFault as fault:
            self._mark(op_id, OverrideState.STOPPED, f"interrupted; its last items are not settled yet: {fault}")
            return False
        self._mark(op_id, OverrideState.STOPPED, "interrupted, settled by re-reading")
        return True

    def _settle(self, plan: Plan, op_id: str) -> None:
        shares = {share.backend: share for share in plan.shares}
        open_intents = self.book.open_intents(op_id)
        for intent in open_intents:
            share = shares[intent.backend]
            rows = rows_of(self.book, intent)
            outcomes = settle(plan, share, self._requeues(share), rows, intent.at)
            body = {"backend": share.backend, "plan_hash": plan.hash, "settled": True}
            with suppress(PlanStale):  # its own process was not gone after all, and has told itself
                self.book.conclude(op_id, self._owner, intent.seq, outcomes, body, self._clock.now())

    def _done(self, plan: Plan, op_id: str) -> bytearray:
        done = bytearray(plan.changes)
        for batch in self.book.outcomes(op_id):
            for outcome in batch:
                done[outcome.ordinal] |= outcome.outcome != NOT_APPLIED
        return done

    # -- from another process --------------------------------------------------------------------

    def stop(self, op_id: str) -> None:
        """Ask a running override to end after its chunk; it can be resumed."""
        self._ask(op_id, Request.STOP)

    def pause(self, op_id: str) -> None:
        self._ask(op_id, Request.PAUSE)

    def proceed(self, op_id: str) -> None:
        """Let a paused override go on."""
        self._ask(op_id, Request.CONTINUE)

    def _ask(self, op_id: str, request: Request) -> None:
        self.require_writable()
        self.book.ask(self.book.override(op_id).op_id, request)

    # -- rules -----------------------------------------------------------------------------------

    def require_writable(self) -> None:
        """The first layer of audit mode; the connections are the second."""
        if self.read_only:
            raise ReadOnlyRefused(fix="Start it without --read-only to change anything.")

    def _written(self, plan: Plan) -> list[tuple[Share, Requeues]]:
        """The backends something is to change in; one where all is blocked need not even be there."""
        return [(share, self._requeues(share)) for share in plan.shares if share.changes]

    def _requeues(self, share: Share) -> Requeues:
        backend = self.backends.get(share.backend)
        if backend is None:
            raise Unreachable("it is not configured, or did not open", where=share.backend)
        if backend.place != share.place:
            raise PlanStale(
                f"{share.backend} is now {backend.place}, the plan was made for {share.place}",
                fix="Propose again.",
            )
        if not isinstance(backend, Requeues):
            raise Refused(f"{share.backend} cannot be written")
        return backend


def _authority(confirmation: Confirmation, op_id: str) -> Authority:
    return Authority(str(confirmation.who), confirmation.reason, confirmation.ticket, op_id)


def _who(who: Who) -> dict[str, Any]:
    return {"uid": who.uid, "login": who.login, "claimed": who.claimed}


def _whence(whence: Whence) -> dict[str, Any]:
    return {
        "host": whence.host,
        "tty": whence.tty,
        "ssh_peer": whence.ssh_peer,
        "pid": whence.pid,
        "version": whence.version,
    }
