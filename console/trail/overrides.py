"""Overrides in the book: confirmed, announced, concluded, taken over. Each step is one transaction."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from itertools import repeat
from operator import gt
from typing import Any

from console.core.backend import OutcomeKind
from console.core.faults import NoSuchOverride, PlanStale, Refused
from console.core.override import NOT_APPLIED, ItemOutcome, ItemOutcomes, OverrideState, Request, ranges
from console.core.plan import Confirmation, Plan, canonical
from console.trail import leases
from console.trail.anchor import Anchor, AnchorLine
from console.trail.chain import Chain, Head
from console.trail.faultpoint import reach
from console.trail.history import History, intent_of
from console.trail.leases import Lease
from console.trail.plans import begin_plan
from console.trail.record import ItemsDigest, Kind, stamp
from console.trail.storage import Writing
from console.trail.texts import storable, stored_text

_OUTCOME_COLUMNS = ("seq", "ordinal", "key", "outcome", "detail")
_CHANGED = OutcomeKind.CHANGED.value
_ENDS = (OverrideState.STOPPED, OverrideState.FINISHED)
_NEW_STATE = """INSERT INTO override_state
    (op_id, seq, plan_id, state, started, confirmed, counts, note, leases) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"""
_CONCLUDED = """SELECT i.op_id, i.owner, i.concluded, r.kind FROM intent AS i
    LEFT JOIN record AS r ON r.seq = i.concluded WHERE i.seq = ?"""
_OUTCOMES_OF = """SELECT x.ordinal, x.outcome FROM intent AS i JOIN item_outcome AS x ON x.seq = i.concluded
    WHERE i.op_id = ? AND x.ordinal >= ? AND x.ordinal <= ? ORDER BY x.seq"""
_SET_STATE = "UPDATE override_state SET state = ?, note = ? WHERE op_id = ?"
_AFTER = {  # what is asked, and what is pending then: a stop is never taken back, a pause until continued
    (Request.STOP, Request.PAUSE): Request.STOP,
    (Request.STOP, Request.CONTINUE): Request.STOP,
}


class Overrides(History):
    """The part of the book that writes what becomes of a plan."""

    _chain: Chain
    _anchor: Anchor | None
    warnings: list[str]

    # -- taking ----------------------------------------------------------------------------------

    def begin(self, op_id: str, plan: Plan, confirmation: Confirmation, owner: str, now: datetime) -> None:
        def work(writing: Writing) -> Head:
            begin_plan(writing, plan, op_id)
            self._take(writing, plan, op_id, owner, now)
            body = {**_plan_facts(plan, op_id), **_confirmation_facts(confirmation), "owner": owner}
            head = self._chain.append(writing, Kind.CONFIRM, now, body)
            writing.run(
                _NEW_STATE,
                (op_id, head.seq, plan.id, OverrideState.RUNNING.value, stamp(now), canonical(body), "{}", "",
                 len({share.place for share in plan.shares})),
            )
            return head

        self._chain.saw(self._storage.write(work))

    def take_over(self, op_id: str, owner: str, now: datetime, confirmation: Confirmation) -> None:
        known = self.override(op_id)
        op_id, plan = known.op_id, self.plan(known.plan_id)

        def work(writing: Writing) -> Head:
            state = _state(writing, op_id)
            if state.over:
                raise PlanStale(f"{op_id} is {state.value}")
            before = self._take(writing, plan, op_id, owner, now)
            writing.run(
                "UPDATE override_state SET state = ?, request = NULL, note = '' WHERE op_id = ?",
                (OverrideState.RUNNING.value, op_id),
            )
            body = {
                **_plan_facts(plan, op_id), **_confirmation_facts(confirmation), "owner": owner,
                "was": state.value, "from": sorted({lease.owner for lease in before if lease.op_id == op_id}),
            }
            return self._chain.append(writing, Kind.TAKEOVER, now, body)

        self._chain.saw(self._storage.write(work))

    def _take(self, writing: Writing, plan: Plan, op_id: str, owner: str, now: datetime) -> list[Lease]:
        """Whoever loses a lease by this was silent for too long; that their override ended is recorded."""
        lost = leases.take(writing, plan.shares, op_id, owner, now)
        for other in sorted({lease.op_id for lease in lost} - {op_id}):
            note = f"abandoned; its lease went to {op_id}"
            leases.give_back(writing, other)
            self._set_state(writing, other, OverrideState.STOPPED, note, now)
        return lost

    # -- carrying out ----------------------------------------------------------------------------

    def intend(self, op_id: str, owner: str, body: Mapping[str, Any], now: datetime) -> int:
        reach("before_intent")

        def work(writing: Writing) -> Head:
            leases.insist(writing, op_id, owner)
            plan_id = writing.all("SELECT plan_id FROM override_state WHERE op_id = ?", (op_id,))[0][0]
            told = {**body, "op_id": op_id, "plan_id": plan_id}
            intent_of(0, told)  # an intent that could not be read again must not be recorded
            head = self._chain.append(writing, Kind.INTENT, now, told)
            writing.run("INSERT INTO intent (seq, op_id, owner) VALUES (?, ?, ?)", (head.seq, op_id, owner))
            return head

        head = self._storage.write(work)
        self._chain.saw(head)
        reach("after_intent")
        return head.seq

    def conclude(
        self,
        op_id: str,
        owner: str,
        intent: int,
        outcomes: Sequence[ItemOutcome],
        body: Mapping[str, Any],
        now: datetime,
    ) -> None:
        """Whoever announced it may always tell, even when the lease is gone: nobody else knows what it has done."""
        reach("before_outcome")
        in_order = _in_order(ItemOutcomes.of(outcomes))
        told = {**body, "op_id": op_id, "intent": intent}

        def work(writing: Writing) -> Head:
            kind = _conclusion(writing, op_id, owner, intent)
            if kind is Kind.LATE:
                return self._late(writing, owner, in_order, told, now)
            if kind is Kind.SETTLE:
                leases.insist(writing, op_id, owner)
            head, counts = self._tell(writing, kind, in_order, told, now)
            writing.run("UPDATE intent SET concluded = ? WHERE seq = ?", (head.seq, intent))
            _set_counts(writing, op_id, _counts(writing, op_id) + counts)
            return head

        self._chain.saw(self._storage.write(work))
        reach("after_outcome")

    def _tell(
        self, writing: Writing, kind: Kind, outcomes: ItemOutcomes, body: Mapping[str, Any], now: datetime
    ) -> tuple[Head, Counter[str]]:
        """A record with item outcomes, and how many of each."""
        end = self._chain.end(writing)
        texts = storable(outcomes.keys, outcomes.outcomes, outcomes.details)
        rows = list(zip(repeat(end.seq + 1), outcomes.ordinals, *texts, strict=False))
        digest = ItemsDigest()
        digest.add(rows)
        counts = Counter(outcomes.outcomes)
        told = {**body, "counts": counts, "items_count": digest.count, "items_digest": digest.hexdigest()}
        head = self._chain.append(writing, kind, now, told, after=end)
        writing.bulk("item_outcome", _OUTCOME_COLUMNS, rows)
        return head, counts

    def _late(
        self, writing: Writing, owner: str, outcomes: ItemOutcomes, body: Mapping[str, Any], now: datetime
    ) -> Head:
        """Settled by another while its process was away, which had changed more than could be seen then.

        What it has changed and no record says so becomes an intent and its outcome in one; `instead` are the
        outcomes that counted for these items until now.
        """
        op_id, intent = body["op_id"], body["intent"]
        known = _known(writing, op_id, outcomes.ordinals)
        pairs = zip(outcomes.ordinals, outcomes.outcomes, strict=True)
        changed = outcomes.only([what == _CHANGED != known.get(ordinal) for ordinal, what in pairs])
        if not changed:
            return self._chain.end(writing)
        announced = json.loads(writing.all("SELECT body FROM record WHERE seq = ?", (intent,))[0][0])
        instead = Counter(known[ordinal] for ordinal in changed.ordinals if ordinal in known)
        del instead[NOT_APPLIED]
        told = {
            **announced, **body, "ranges": ranges(changed.ordinals), "items": len(changed), "owner": owner,
            "instead": instead,
        }
        head, counts = self._tell(writing, Kind.LATE, changed, told, now)
        writing.run(
            "INSERT INTO intent (seq, op_id, owner, concluded) VALUES (?, ?, ?, ?)", (head.seq, op_id, owner, head.seq)
        )
        _set_counts(writing, op_id, _counts(writing, op_id) + counts - instead)
        return head

    def beat(self, op_id: str, owner: str, now: datetime) -> Request | None:
        """A pause is returned until it is continued, a stop for ever, a continue once."""

        def work(writing: Writing) -> Request | None:
            leases.beat(writing, op_id, owner, now)
            request = _request(writing, op_id)
            if request is Request.CONTINUE:
                writing.run("UPDATE override_state SET request = NULL WHERE op_id = ?", (op_id,))
            return request

        return self._storage.write(work)

    def ask(self, op_id: str, request: Request) -> None:
        """Refused where nobody is left to hear it."""
        op_id = self.override(op_id).op_id

        def work(writing: Writing) -> None:
            now = writing.now(self._clock.now())
            state = _state(writing, op_id)
            if state in _ENDS:
                raise Refused(f"{op_id} is {state.value}")
            if not any(lease.op_id == op_id and lease.alive(now) for lease in leases.leases(writing)):
                raise Refused(f"nobody carries {op_id} out any more", fix=f"Run `retriage overrides resume {op_id}`.")
            pending = _request(writing, op_id)
            wanted = _AFTER.get((pending, request), request) if pending else request
            writing.run("UPDATE override_state SET request = ? WHERE op_id = ?", (wanted.value, op_id))

        self._storage.write(work)

    # -- the end ---------------------------------------------------------------------------------

    def mark(
        self, op_id: str, state: OverrideState, note: str, now: datetime, *, owner: str | None = None
    ) -> None:
        """With an `owner`, `LeaseLost` when the override is not theirs any more."""
        reach("before_state")
        ends = state in _ENDS
        anchor = self._anchor if ends else None

        def work(writing: Writing) -> Head:
            _state(writing, op_id)
            if owner is not None:
                leases.insist(writing, op_id, owner)
            head = self._set_state(writing, op_id, state, note, now)
            if ends:
                leases.give_back(writing, op_id)
            if anchor is not None:
                body = {"op_id": op_id, "seq": head.seq, "hash": head.hash, "place": anchor.kind}
                head = self._chain.append(writing, Kind.ANCHOR, now, body)
            return head

        head = self._storage.write(work)
        self._chain.saw(head)
        if anchor is not None:
            self._drop_anchor(anchor, head, now)
        reach("after_state")

    def _set_state(
        self, writing: Writing, op_id: str, state: OverrideState, note: str, now: datetime
    ) -> Head:
        writing.run(_SET_STATE, (state.value, stored_text(note), op_id))
        if state in _ENDS:
            writing.run("UPDATE override_state SET request = NULL WHERE op_id = ?", (op_id,))
        body = {"op_id": op_id, "state": state.value, "note": note}
        return self._chain.append(writing, Kind.STATE, now, body)

    def _drop_anchor(self, anchor: Anchor, head: Head, now: datetime) -> None:
        """The override is over and on record; that it could not be anchored is a warning, on record too."""
        why = anchor.drop(AnchorLine(head.seq, head.hash, now))
        if why is None:
            return
        self.warnings.append(f"record {head.seq} could not be anchored: {why}")
        body = {"seq": head.seq, "hash": head.hash, "place": anchor.kind, "failed": why}
        self._append(Kind.ANCHOR, body, now)

    def _append(self, kind: Kind, body: Mapping[str, Any], now: datetime) -> None:
        """One record on its own."""
        self._chain.saw(self._storage.write(lambda writing: self._chain.append(writing, kind, now, body)))


def _plan_facts(plan: Plan, op_id: str) -> dict[str, Any]:
    body = plan.body()
    kept = ("action", "budget", "flags", "release", "selection", "undo_of", "shares", "blocked", "warnings")
    return {"op_id": op_id, "plan_id": plan.id, "plan_hash": plan.hash, **{name: body[name] for name in kept}}


def _confirmation_facts(confirmation: Confirmation) -> dict[str, Any]:
    who, whence = confirmation.who, confirmation.whence
    return {**asdict(confirmation), "who": who._asdict(), "whence": whence._asdict(), "by": str(who)}


def _state(writing: Writing, op_id: str) -> OverrideState:
    found = writing.all("SELECT state FROM override_state WHERE op_id = ?", (op_id,))
    if not found:
        raise NoSuchOverride(repr(op_id))
    return OverrideState(found[0][0])


def _request(writing: Writing, op_id: str) -> Request | None:
    pending = writing.all("SELECT request FROM override_state WHERE op_id = ?", (op_id,))[0][0]
    return None if pending is None else Request(pending)


def _conclusion(writing: Writing, op_id: str, owner: str, intent: int) -> Kind:
    """An intent is concluded by the process that announced it, or settled by one that came after; or both."""
    found = writing.all(_CONCLUDED, (intent,))
    if not found or found[0][0] != op_id:
        raise PlanStale(f"{op_id} has no intent {intent}")
    _, announced_by, concluded, kind = found[0]
    if concluded is None:
        return Kind.OUTCOME if announced_by == owner else Kind.SETTLE
    if announced_by == owner and kind == Kind.SETTLE:
        return Kind.LATE
    raise PlanStale(f"intent {intent} was concluded before, in record {concluded}")


def _known(writing: Writing, op_id: str, ordinals: Sequence[int]) -> dict[int, str]:
    """What is on record of some items of an override; that one was changed is never taken back."""
    known: dict[int, str] = {}
    for ordinal, outcome in writing.all(_OUTCOMES_OF, (op_id, ordinals[0], ordinals[-1])) if ordinals else ():
        if known.get(ordinal) != _CHANGED:
            known[ordinal] = outcome
    return known


def _in_order(outcomes: ItemOutcomes) -> ItemOutcomes:
    """By their ordinals; an enum becomes plain text, which drivers know."""
    if any(type(what) is not str for what in set(outcomes.outcomes)):
        texts = list(map(str, outcomes.outcomes))
        outcomes = ItemOutcomes(outcomes.ordinals, outcomes.keys, texts, outcomes.details)
    if any(map(gt, outcomes.ordinals, outcomes.ordinals[1:])):
        outcomes = ItemOutcomes.of(sorted(outcomes))
    return outcomes


def _counts(writing: Writing, op_id: str) -> Counter[str]:
    return Counter(json.loads(writing.all("SELECT counts FROM override_state WHERE op_id = ?", (op_id,))[0][0]))


def _set_counts(writing: Writing, op_id: str, counts: Counter[str]) -> None:
    """What was not applied is still to be done, so it is not counted as done."""
    del counts[NOT_APPLIED]
    writing.run("UPDATE override_state SET counts = ? WHERE op_id = ?", (canonical(counts), op_id))
