"""Stores proposals and the rules in force. Decisions are read from their records: a table could have been edited."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from console.core.access import AccessRules, Compare, changes_in
from console.core.confirm import Origin, Who, recorded
from console.core.faults import NoSuchProposal, NotAllowed, PlanStale, TrailBroken
from console.core.plan import Plan, canonical
from console.core.ports import latest_time
from console.core.proposals import PROPOSAL_LIFETIME, Proposal, ProposalState
from console.trail.plans import only, plan_facts
from console.trail.reader import TrailReader
from console.trail.record import VERIFY, Head, Kind, legible, link, moment, stamp
from console.trail.storage import Row, Writing, select, stored_text

_COLUMNS = """p.plan_id, p.decision, s.seq, s.kind, s.at, s.body, s.prev, s.hash,
    d.seq, d.kind, d.at, d.body, d.prev, d.hash"""
_FROM = """FROM proposal AS p LEFT JOIN record AS s ON s.seq = p.seq LEFT JOIN record AS d ON d.seq = p.decided"""
_NEWEST = f"SELECT {_COLUMNS} {_FROM} ORDER BY p.seq DESC LIMIT ?"
_BY_PREFIX = f"""SELECT {_COLUMNS} {_FROM} WHERE substr(p.plan_id, 1, ?) = ?
    ORDER BY length(p.plan_id), p.plan_id LIMIT 2"""
_INSERT = "INSERT INTO proposal (plan_id, seq, expires, proposer, second_person) VALUES (?, ?, ?, ?, ?)"
_DECIDE = """UPDATE proposal SET decision = ?, decided = ?, decided_by = ?
    WHERE plan_id = ? AND seq = ? AND decided IS NULL"""
_LAST_POLICY = "SELECT seq, body FROM record WHERE kind = ? ORDER BY seq DESC LIMIT 1"
_CONFIRMED_BEFORE = "SELECT seq, at, body FROM record WHERE kind = ? AND seq < ? ORDER BY seq DESC LIMIT ?"
_OPEN_OF = "SELECT 1 FROM proposal WHERE plan_id = ? AND decided IS NULL"
_HIGHEST = 2**63 - 1
_AT_ONCE = 200
DECISIONS = {
    Kind.CONFIRMED: ProposalState.APPROVED, Kind.REJECTED: ProposalState.REJECTED,
    Kind.WITHDRAWN: ProposalState.WITHDRAWN,
}
"""The records that decide a proposal."""
NO_RULES = AccessRules()


class Proposals(TrailReader):
    """The part of the trail that stores proposals and the rules in force."""

    # -- proposals -------------------------------------------------------------------------------

    def submit(
        self, plan: Plan, who: Who, origin: Origin, reason: str, ticket: str | None, now: datetime, *,
        rules: AccessRules = NO_RULES, client: str | None = None,
    ) -> Proposal:
        rule = rules.approval_for(changes_in(plan))
        second_person = None if rule is None else rule.compare.value

        def work(writing: Writing) -> Head:
            planned, _ = self.recorded_in(writing, plan, who, origin, now)
            if writing.all("SELECT 1 FROM proposal WHERE plan_id = ?", (plan.id,)):
                raise PlanStale("The plan was submitted already", fix="Make a new plan.")
            policy = self._record_rules(writing, rules, who, origin, now)
            expires = stamp(max(now, writing.now(now)) + PROPOSAL_LIFETIME)
            body = {
                **plan_facts(plan), **recorded(who, origin), "expires_at": expires, "planned": planned,
                "reason": reason, "ticket": ticket, "client": client, "second_person": second_person, "policy": policy,
            }
            head = self._chain.append(writing, Kind.SUBMITTED, now, body)
            role = writing.facts.get("session_user", "")
            writing.run(_INSERT, (plan.id, head.seq, expires, role, second_person or ""))
            return head

        self._chain.look_at_anchor()
        self._chain.remember(self._storage.write(work))
        return self.proposal(plan.id)

    def decline(
        self, proposal: Proposal, state: ProposalState, who: Who, origin: Origin, reason: str, now: datetime
    ) -> None:
        """Record that an open proposal was rejected or withdrawn."""
        kind = Kind.REJECTED if state is ProposalState.REJECTED else Kind.WITHDRAWN

        def work(writing: Writing) -> Head:
            body = {
                "plan_id": proposal.plan_id, "plan_hash": proposal.plan_hash, "proposal": proposal.seq,
                "reason": reason, **recorded(who, origin),
            }
            seq = self._chain.end(writing).seq + 1
            self._decide(writing, proposal, state, seq)
            return self._chain.append(writing, kind, now, body)

        self._chain.remember(self._storage.write(work))

    def _decide(
        self, writing: Writing, proposal: Proposal, state: ProposalState, seq: int, rules: AccessRules = NO_RULES
    ) -> None:
        """Mark a proposal as decided by the record with this number, which the caller appends next."""
        role = writing.facts.get("session_user", "")
        rule = rules.approval_for(proposal.changes)  # it may be newer than the proposal
        by_role = Compare.ROLE in (proposal.second_person, None if rule is None else rule.compare)
        if state is ProposalState.APPROVED and by_role and role == proposal.role:  # the database refuses most of these
            raise NotAllowed(
                f"The database role {role} submitted this proposal, so another role must approve it",
                fix="Give each person their own role, or set `compare: login` for this rule.",
            )
        if not writing.run(_DECIDE, (state.value, seq, role, proposal.plan_id, proposal.seq)):
            raise PlanStale("The proposal was decided meanwhile", fix="Look at it again.")

    def _require_not_submitted(self, writing: Writing, plan: Plan) -> None:
        if writing.all(_OPEN_OF, (plan.id,)):
            fix = f"Run `retriage proposals approve {plan.id}`, or withdraw it."
            raise PlanStale("The plan was submitted, so it waits for its approval", fix=fix)

    def proposal(self, plan_id: str) -> Proposal:
        prefix = stored_text(plan_id)
        rows = select(self._storage, _BY_PREFIX, (len(prefix), prefix))
        found = only(rows, plan_id)
        if found is None:
            several = len(rows) > 1 and plan_id
            raise NoSuchProposal(f"several begin with {plan_id!r}" if several else repr(plan_id))
        return _proposal(found).at(self._clock.now())

    def proposals(self, limit: int | None = None) -> Sequence[Proposal]:
        now = self._clock.now()
        rows = select(self._storage, _NEWEST, (_HIGHEST if limit is None else limit,))
        return [_proposal(row).at(now) for row in rows]

    # -- the rules in force ----------------------------------------------------------------------

    def _record_rules(
        self, writing: Writing, rules: AccessRules, who: Who, origin: Origin, now: datetime
    ) -> int | None:
        """The number of the record with the rules in force. A new one is made when they changed; None if there are no
        rules and never were."""
        seq, rules_before = None, canonical(NO_RULES.body())
        for found, body in writing.all(_LAST_POLICY, (Kind.POLICY.value,)):
            with legible(f"record {found}"):
                seq, rules_before = found, canonical(json.loads(body)["rules"])
        if canonical(rules.body()) == rules_before:
            return seq
        return self._chain.append(writing, Kind.POLICY, now, {"rules": rules.body(), **recorded(who, origin)}).seq

    def _require_within_limits(self, writing: Writing, rules: AccessRules, plan: Plan, now: datetime) -> None:
        """Refuse a plan that, with what was confirmed before, is above a limit. Nobody else confirms meanwhile."""
        if not rules.limits:
            return
        end = self._chain.end(writing)
        # The server's time is no claim. Without one, a clock that is set back frees nothing.
        now = _server_time(writing.facts) or max([now, *([end.latest] if end.at else [])])
        before: list[tuple[datetime, Mapping[str, int]]] = []
        last = end.seq + 1
        while rows := writing.all(_CONFIRMED_BEFORE, (Kind.CONFIRMED.value, last, _AT_ONCE)):
            with legible("a confirmation"):
                for _, at, text in rows:
                    body = json.loads(text)
                    begun = _server_time(body.get("server")) or latest_time(moment(at), body)
                    before.append((begun, _changes(body)))
            last = rows[-1][0]
            if now - before[-1][0] > rules.longest():
                break
        rules.require_within_limits(changes_in(plan), before, now)


def _server_time(facts: Any) -> datetime | None:
    """The time that the trail's server had; None without a server."""
    at = facts.get("at") if isinstance(facts, Mapping) else None
    return moment(at) if isinstance(at, str) else None


def _changes(body: Mapping[str, Any]) -> dict[str, int]:
    return {part["backend"]: part["changes"] for part in body["parts"]}


def _proposal(row: Row) -> Proposal:
    plan_id, decision, *records = row
    with legible(f"proposal {plan_id}"):
        submitted = _body(records[:6], Kind.SUBMITTED)
        if submitted["plan_id"] != plan_id:
            raise ValueError(plan_id)
        found = Proposal(
            plan_id=plan_id, plan_hash=submitted["plan_hash"], seq=records[0], submitted_at=moment(records[2]),
            expires_at=moment(submitted["expires_at"]), who=submitted["by"], reason=submitted["reason"],
            ticket=submitted["ticket"], action=submitted["action"], items=submitted["items"],
            changes={backend: changes for backend, changes in _changes(submitted).items() if changes},
            client=submitted["client"],
            second_person=Compare(submitted["second_person"]) if submitted["second_person"] else None,
            submitted=submitted,
        )
        if decision is None and records[6] is None:
            return found
        kind = Kind(records[7])
        decided = _body(records[6:], kind)
        if (decided["proposal"], DECISIONS[kind]) != (found.seq, decision):
            raise ValueError(decision)
        return replace(
            found, state=DECISIONS[kind], decided_by=decided["by"], decided_at=moment(records[8]),
            note=decided["reason"], override_id=decided.get("override_id"),
        )


def _body(row: Sequence[Any], kind: Kind) -> dict[str, Any]:
    """The body of a record; `TrailBroken` unless it is intact and of this kind."""
    seq, found, at, body, prev, digest = row
    if seq is None or found != kind or link(prev, seq, found, at, body) != digest:
        raise TrailBroken(f"record {seq} of a proposal was altered", advice=VERIFY)
    loaded: dict[str, Any] = json.loads(body)
    return loaded
