"""Writes overrides to the trail: confirmation, intents, outcomes, takeover, state. Each step is one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import repeat
from typing import Any

from console.core.access import AccessRules
from console.core.advice import Advice, Step
from console.core.backend import OutcomeKind
from console.core.confirm import Confirmation, Origin, Who, recorded
from console.core.faults import NoSuchOverride, PlanStale, Refused, TrailUnavailable
from console.core.override import ABANDONED, NOT_APPLIED, ItemOutcome, OverrideState, Request, ranges
from console.core.plan import Plan, canonical
from console.core.proposals import Proposal, ProposalState
from console.core.recovery import ItemResult
from console.trail import leases
from console.trail.anchor import Anchor, AnchorLine
from console.trail.faultpoint import reach
from console.trail.leases import Lease
from console.trail.plans import plan_facts
from console.trail.proposals import NO_RULES, Proposals
from console.trail.reader import intent_of
from console.trail.record import Head, ItemsDigest, Kind, legible, link, stamp
from console.trail.storage import Row, Writing, storable, stored_text

_RESULT_COLUMNS = ("seq", "ordinal", "key", "result", "cause")
_RESULT_OF = "SELECT state, result FROM override_state WHERE override_id = ?"
_OUTCOME_COLUMNS = ("seq", "ordinal", "key", "outcome", "detail")
_CHANGED = OutcomeKind.APPLIED.value
_ENDS = (OverrideState.STOPPED, OverrideState.FINISHED)
_RELEASED = (*_ENDS, OverrideState.QUEUED)
"""The states in which no process has the leases."""
_NEW_STATE = """INSERT INTO override_state
    (override_id, seq, plan_id, state, started, confirmed, counts, note, leases, undo_of)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_CONCLUDED = """SELECT i.override_id, i.owner, i.concluded, r.kind FROM intent AS i
    LEFT JOIN record AS r ON r.seq = i.concluded WHERE i.seq = ?"""
_OUTCOMES_OF = """SELECT x.ordinal, x.outcome FROM intent AS i JOIN item_outcome AS x ON x.seq = i.concluded
    WHERE i.override_id = ? AND x.ordinal >= ? AND x.ordinal <= ? ORDER BY x.seq"""
_HAS_LATE_RECORD = "SELECT 1 FROM intent WHERE override_id = ? AND concluded = seq LIMIT 1"
_UNTOUCHED = "Nothing was changed."
_SET_STATE = "UPDATE override_state SET state = ?, note = ? WHERE override_id = ?"
_REQUESTED = """SELECT r.seq, r.kind, r.at, r.body, r.prev, r.hash FROM override_state AS o
    LEFT JOIN record AS r ON r.seq = o.request WHERE o.override_id = ? AND o.request IS NOT NULL"""


class Overrides(Proposals):
    """The part of the trail that writes overrides."""

    _anchor: Anchor | None
    warnings: list[str]

    # -- starting --------------------------------------------------------------------------------

    def begin(
        self, override_id: str, plan: Plan, confirmation: Confirmation, owner: str, now: datetime, *,
        rules: AccessRules = NO_RULES, proposal: Proposal | None = None, detached: bool = False,
    ) -> None:
        def work(writing: Writing) -> Head:
            who, origin = confirmation.who, confirmation.origin
            planned, _ = self.recorded_in(writing, plan, who, origin, now)
            self._require_within_limits(writing, rules, plan, now)
            policy = self._record_rules(writing, rules, who, origin, now)
            named: dict[str, Any] = {"override_id": override_id, "planned": planned, "owner": owner, "policy": policy}
            state = OverrideState.QUEUED if detached else OverrideState.RUNNING
            if detached:
                named["detached"] = True
            else:
                self._take(writing, plan, override_id, owner, now)
            if proposal is None:
                self._require_not_submitted(writing, plan)
            else:
                self._decide(writing, proposal, ProposalState.APPROVED, self._chain.end(writing).seq + 1, rules)
                named |= {"proposal": proposal.seq, "proposed_by": proposal.proposer}
            body = {**plan_facts(plan), **_confirmation_facts(confirmation), **named}
            head = self._chain.append(writing, Kind.CONFIRMED, now, body)
            writing.run(
                _NEW_STATE,
                (override_id, head.seq, plan.id, state.value, stamp(now), head.body, "{}", "",
                 len({part.place for part in plan.parts}), plan.undo_of),
            )
            return self._announce_anchor(writing, override_id, head, now)

        self._chain.look_at_anchor()
        head = self._storage.write(work)
        self._chain.remember(head)
        if self._anchor is not None and (why := self._write_anchor(self._anchor, head, now)):
            self.mark(override_id, OverrideState.STOPPED, f"The anchor could not be written: {why}. {_UNTOUCHED}", now)
            raise TrailUnavailable(
                f"the anchor could not be written: {why}", where=self._anchor.place,
                fix=f"{_UNTOUCHED} Make it writable again.", advice=Advice(Step.RESUME, override_id),
            )

    def take_over(self, override_id: str, owner: str, now: datetime, confirmation: Confirmation) -> None:
        known = self.override(override_id)
        override_id, plan = known.override_id, self.plan(known.plan_id)

        def work(writing: Writing) -> Head:
            state = _state(writing, override_id)
            if state.over:
                raise PlanStale(f"Override {override_id} is {state.value}")
            before = self._take(writing, plan, override_id, owner, now)
            writing.run(
                "UPDATE override_state SET state = ?, request = NULL, note = '', result = NULL WHERE override_id = ?",
                (OverrideState.RUNNING.value, override_id),
            )
            body = {
                **plan_facts(plan), **_confirmation_facts(confirmation), "override_id": override_id, "owner": owner,
                "previous_state": state.value,
                "previous_owners": sorted({lease.owner for lease in before if lease.override_id == override_id}),
            }
            return self._chain.append(writing, Kind.TAKEOVER, now, body)

        self._chain.look_at_anchor()
        self._chain.remember(self._storage.write(work))

    def _take(self, writing: Writing, plan: Plan, override_id: str, owner: str, now: datetime) -> list[Lease]:
        """Take the leases. An override that loses one (its owner is dead) is recorded as stopped; or queued, if it was
        confirmed for a runner."""
        lost = leases.take(writing, plan.parts, override_id, owner, now)
        for other in sorted({lease.override_id for lease in lost} - {override_id}):
            note = f"{ABANDONED} Its lease went to {override_id}."
            leases.release(writing, other)
            state = OverrideState.QUEUED if _is_detached(writing, other) else OverrideState.STOPPED
            self._set_state(writing, other, state, note, now)
        return lost

    # -- carrying out ----------------------------------------------------------------------------

    def intend(self, override_id: str, owner: str, body: Mapping[str, Any], now: datetime) -> int:
        reach("before_intent")

        def work(writing: Writing) -> Head:
            leases.require(writing, override_id, owner)
            plan_id = writing.all("SELECT plan_id FROM override_state WHERE override_id = ?", (override_id,))[0][0]
            full = {**body, "override_id": override_id, "plan_id": plan_id}
            intent_of(0, full)  # fails for an intent that could not be read again
            head = self._chain.append(writing, Kind.INTENT, now, full)
            writing.run("INSERT INTO intent (seq, override_id, owner) VALUES (?, ?, ?)", (head.seq, override_id, owner))
            return head

        head = self._storage.write(work)
        self._chain.remember(head)
        reach("after_intent")
        return head.seq

    def conclude(
        self,
        override_id: str,
        owner: str,
        intent: int,
        outcomes: Sequence[ItemOutcome],
        body: Mapping[str, Any],
        now: datetime,
    ) -> None:
        """The process that announced the intent needs no lease: only it knows what it has done."""
        reach("before_outcome")
        in_order = _in_order(outcomes)
        full = {**body, "override_id": override_id, "intent": intent}

        def work(writing: Writing) -> Head:
            kind = _conclusion(writing, override_id, owner, intent)
            if kind is Kind.LATE:
                return self._append_late(writing, owner, in_order, full, now)
            if kind is Kind.SETTLE:
                leases.require(writing, override_id, owner)
            new = _without_late_changes(writing, override_id, in_order)
            noted = {**full, "already_changed": len(in_order) - len(new)} if len(new) < len(in_order) else full
            head, counts = self._append_outcomes(writing, kind, new, noted, now)
            writing.run("UPDATE intent SET concluded = ? WHERE seq = ?", (head.seq, intent))
            _set_counts(writing, override_id, _counts(writing, override_id) + counts)
            return head

        self._chain.remember(self._storage.write(work))
        reach("after_outcome")

    def _append_outcomes(
        self, writing: Writing, kind: Kind, outcomes: Sequence[ItemOutcome], body: Mapping[str, Any], now: datetime
    ) -> tuple[Head, Counter[str]]:
        """Append a record with item outcomes. Returns the record and the counts."""
        end = self._chain.end(writing)
        ordinals, *texts = zip(*outcomes, strict=True) if outcomes else ((), (), (), ())
        rows = list(zip(repeat(end.seq + 1), ordinals, *storable(*texts), strict=False))
        digest = ItemsDigest()
        digest.add(rows)
        counts = Counter(one.outcome for one in outcomes)
        full = {**body, "counts": counts, "items_count": digest.count, "items_digest": digest.hexdigest()}
        head = self._chain.append(writing, kind, now, full, after=end)
        if rows:
            writing.bulk("item_outcome", _OUTCOME_COLUMNS, rows)
        return head, counts

    def _append_late(
        self, writing: Writing, owner: str, outcomes: Sequence[ItemOutcome], body: Mapping[str, Any], now: datetime
    ) -> Head:
        """Record changes that another process did not see when it settled this intent.

        They become an intent and its outcome in one record. `replaced` counts the earlier outcomes of these items.
        """
        override_id, intent = body["override_id"], body["intent"]
        known = _known(writing, override_id, [one.ordinal for one in outcomes])
        changed = [one for one in outcomes if one.outcome == _CHANGED != known.get(one.ordinal)]
        if not changed:
            return self._chain.end(writing)
        announced = json.loads(writing.all("SELECT body FROM record WHERE seq = ?", (intent,))[0][0])
        ordinals = [one.ordinal for one in changed]
        replaced = Counter(known[ordinal] for ordinal in ordinals if ordinal in known)
        del replaced[NOT_APPLIED]
        full = {
            **announced, **body, "ranges": ranges(ordinals), "items": len(changed), "owner": owner,
            "replaced": replaced,
        }
        head, counts = self._append_outcomes(writing, Kind.LATE, changed, full, now)
        writing.run(
            "INSERT INTO intent (seq, override_id, owner, concluded) VALUES (?, ?, ?, ?)",
            (head.seq, override_id, owner, head.seq),
        )
        _set_counts(writing, override_id, _counts(writing, override_id) + counts - replaced)
        return head

    def beat(self, override_id: str, owner: str, now: datetime) -> Request | None:
        """Returns a pause until it is continued, a stop always, a continue once."""

        def work(writing: Writing) -> Request | None:
            leases.beat(writing, override_id, owner, now)
            request = _request(writing, override_id)
            if request is Request.CONTINUE:
                writing.run("UPDATE override_state SET request = NULL WHERE override_id = ?", (override_id,))
            return request

        return self._storage.write(work)

    def ask(self, override_id: str, request: Request, who: Who, origin: Origin) -> None:
        """Refused when no process runs this override."""
        override_id, ours = self.override(override_id).override_id, self._clock.now()

        def work(writing: Writing) -> Head:
            now = writing.now(ours)
            state = _state(writing, override_id)
            if state in _ENDS:
                raise Refused(f"Override {override_id} is {state.value}")
            if state is OverrideState.QUEUED:
                return self._ask_queued(writing, override_id, request, who, origin, ours)
            if not any(lease.override_id == override_id and lease.alive(now) for lease in leases.leases(writing)):
                fix = f"Run `retriage overrides resume {override_id}`."
                raise Refused(f"No process runs override {override_id} any more", fix=fix)
            pending = _request(writing, override_id)
            body = {"override_id": override_id, "request": request.value, **recorded(who, origin)}
            head = self._chain.append(writing, Kind.REQUESTED, ours, body)
            if pending is not Request.STOP:  # a stop stays, whatever is asked after it
                writing.run("UPDATE override_state SET request = ? WHERE override_id = ?", (head.seq, override_id))
            return head

        self._chain.remember(self._storage.write(work))

    def _ask_queued(
        self, writing: Writing, override_id: str, request: Request, who: Who, origin: Origin, now: datetime
    ) -> Head:
        """No process runs it yet, so a stop is carried out here."""
        if request is not Request.STOP:
            raise Refused(f"Override {override_id} waits for a runner", fix="It can only be stopped.")
        body = {"override_id": override_id, "request": request.value, **recorded(who, origin)}
        self._chain.append(writing, Kind.REQUESTED, now, body)
        return self._set_state(writing, override_id, OverrideState.STOPPED, "Stopped before a runner took it.", now)

    # -- the end ---------------------------------------------------------------------------------

    def add_result(
        self,
        override_id: str,
        results: Callable[[], Iterator[Sequence[ItemResult]]],
        body: Mapping[str, Any],
        now: datetime,
    ) -> bool:
        """The write itself is the lease: there is never a second one at the same time, and nobody may run the
        override meanwhile. The items are read twice, because the record comes first and holds their digest."""
        digest = ItemsDigest()
        for batch in results():
            digest.add(_result_rows(0, batch))

        def work(writing: Writing) -> Head | None:
            (found,) = writing.all(_RESULT_OF, (override_id,)) or [(None, None)]
            held = any(lease.override_id == override_id for lease in leases.leases(writing))
            if found[0] not in _ENDS or found[1] is not None or held:
                return None
            full = {**body, "items_count": digest.count, "items_digest": digest.hexdigest()}
            head = self._chain.append(writing, Kind.RESULT, now, full)
            for batch in results():
                writing.bulk("item_result", _RESULT_COLUMNS, _result_rows(head.seq, batch))
            writing.run("UPDATE override_state SET result = ? WHERE override_id = ?", (head.seq, override_id))
            return head

        head = self._storage.write(work)
        if head is not None:
            self._chain.remember(head)
        return head is not None

    def mark(
        self, override_id: str, state: OverrideState, note: str, now: datetime, *, owner: str | None = None
    ) -> None:
        """With an `owner`, raises `LeaseLost` when that process no longer has the lease."""
        reach("before_state")
        ends = state in _RELEASED

        def work(writing: Writing) -> Head:
            _state(writing, override_id)
            if owner is not None:
                leases.require(writing, override_id, owner)
            head = self._set_state(writing, override_id, state, note, now)
            if not ends:
                return head
            leases.release(writing, override_id)
            return self._announce_anchor(writing, override_id, head, now)

        head = self._storage.write(work)
        self._chain.remember(head)
        if ends and self._anchor is not None:
            self._write_anchor(self._anchor, head, now)
        reach("after_state")

    def _announce_anchor(self, writing: Writing, override_id: str, head: Head, now: datetime) -> Head:
        """Record that the end of the chain is about to be anchored, so that a missing anchor is noticed."""
        if self._anchor is None:
            return head
        body = {"override_id": override_id, "seq": head.seq, "hash": head.hash, "place": self._anchor.kind}
        return self._chain.append(writing, Kind.ANCHOR, now, body)

    def _set_state(
        self, writing: Writing, override_id: str, state: OverrideState, note: str, now: datetime
    ) -> Head:
        writing.run(_SET_STATE, (state.value, stored_text(note), override_id))
        if state in _RELEASED:
            writing.run("UPDATE override_state SET request = NULL WHERE override_id = ?", (override_id,))
        body = {"override_id": override_id, "state": state.value, "note": note}
        return self._chain.append(writing, Kind.STATE, now, body)

    def _write_anchor(self, anchor: Anchor, head: Head, now: datetime) -> str | None:
        """Write the anchor. Returns why that failed, which is on record too, or None."""
        why = anchor.write(AnchorLine(head.seq, head.hash, now))
        if why is not None:
            self.warnings.append(f"Record {head.seq} could not be anchored: {why}")
            body = {"seq": head.seq, "hash": head.hash, "place": anchor.kind, "failed": why}
            self._append(Kind.ANCHOR, body, now)
        return why

    def _append(self, kind: Kind, body: Mapping[str, Any], now: datetime) -> None:
        """Append one record in its own transaction."""
        self._chain.remember(self._storage.write(lambda writing: self._chain.append(writing, kind, now, body)))


def _result_rows(seq: int, results: Sequence[ItemResult]) -> list[Row]:
    if not results:
        return []
    keys, causes = storable([one.key for one in results], [one.cause or "" for one in results])
    found = ((one.ordinal, one.result.value) for one in results)
    return [(seq, nth, key, result, cause) for (nth, result), key, cause in zip(found, keys, causes, strict=True)]


def _confirmation_facts(confirmation: Confirmation) -> dict[str, Any]:
    given = {"reason": confirmation.reason, "count": confirmation.count, "ticket": confirmation.ticket}
    return {**given, **recorded(confirmation.who, confirmation.origin)}


def _state(writing: Writing, override_id: str) -> OverrideState:
    found = writing.all("SELECT state FROM override_state WHERE override_id = ?", (override_id,))
    if not found:
        raise NoSuchOverride(repr(override_id))
    return OverrideState(found[0][0])


def _is_detached(writing: Writing, override_id: str) -> bool:
    with legible(f"the state of override {override_id}"):
        found = writing.all("SELECT confirmed FROM override_state WHERE override_id = ?", (override_id,))
        return any(json.loads(text).get("detached") for (text,) in found)


def _request(writing: Writing, override_id: str) -> Request | None:
    """What is asked of an override, read from its record: the table could have been edited."""
    for seq, kind, at, body, prev, digest in writing.all(_REQUESTED, (override_id,)):
        with legible(f"the request to override {override_id}"):
            asked = json.loads(body)
            if (kind, asked["override_id"], link(prev, seq, kind, at, body)) != (Kind.REQUESTED, override_id, digest):
                raise ValueError(seq)
            return Request(asked["request"])
    return None


def _conclusion(writing: Writing, override_id: str, owner: str, intent: int) -> Kind:
    """The kind of record that concludes an intent: by its own process, by another one, or by its own after another."""
    found = writing.all(_CONCLUDED, (intent,))
    if not found or found[0][0] != override_id:
        raise PlanStale(f"Override {override_id} has no intent {intent}")
    _, announced_by, concluded, kind = found[0]
    if concluded is None:
        return Kind.OUTCOME if announced_by == owner else Kind.SETTLE
    if announced_by == owner and kind == Kind.SETTLE:
        return Kind.LATE
    raise PlanStale(f"Intent {intent} was concluded already, in record {concluded}")


def _known(writing: Writing, override_id: str, ordinals: Sequence[int]) -> dict[int, str]:
    """The recorded outcomes of some items. Once applied, an item stays applied."""
    known: dict[int, str] = {}
    for ordinal, outcome in writing.all(_OUTCOMES_OF, (override_id, ordinals[0], ordinals[-1])) if ordinals else ():
        if known.get(ordinal) != _CHANGED:
            known[ordinal] = outcome
    return known


def _without_late_changes(
    writing: Writing, override_id: str, outcomes: Sequence[ItemOutcome]
) -> Sequence[ItemOutcome]:
    """Leave out the items that a suspended process of this override has changed meanwhile: they are on record."""
    if not outcomes or not writing.all(_HAS_LATE_RECORD, (override_id,)):
        return outcomes
    known = _known(writing, override_id, [one.ordinal for one in outcomes])
    return [one for one in outcomes if known.get(one.ordinal) != _CHANGED]


def _in_order(outcomes: Sequence[ItemOutcome]) -> list[ItemOutcome]:
    """Outcomes sorted by ordinal. An enum becomes plain text, because not every driver takes an enum."""
    return [
        one if type(one.outcome) is str else one._replace(outcome=str(one.outcome)) for one in sorted(outcomes)
    ]


def _counts(writing: Writing, override_id: str) -> Counter[str]:
    (found,) = writing.all("SELECT counts FROM override_state WHERE override_id = ?", (override_id,))
    return Counter(json.loads(found[0]))


def _set_counts(writing: Writing, override_id: str, counts: Counter[str]) -> None:
    """Store the counts without items that were not applied: they are still to be done."""
    del counts[NOT_APPLIED]
    writing.run("UPDATE override_state SET counts = ? WHERE override_id = ?", (canonical(counts), override_id))
