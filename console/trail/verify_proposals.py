"""Checks proposals and approvals: the table shows what was recorded, and every override had the approval it needed."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from console.core.access import AccessRules, Compare, same_person
from console.trail.proposals import DECISIONS
from console.trail.record import BadRecord, Kind
from console.trail.storage import Row, Storage, select
from console.trail.verify_table import TableCheck

_PROPOSALS = """SELECT seq, plan_id, expires, proposer, second_person, decision, decided, decided_by FROM proposal
    WHERE seq > ? AND seq <= ? ORDER BY seq, plan_id"""
_WITHOUT_RECORD = """SELECT min(p.seq) FROM proposal AS p LEFT JOIN record AS r ON r.seq = p.seq AND r.kind = ?
    WHERE r.seq IS NULL"""
_RECORD = "SELECT kind, body FROM record WHERE seq = ?"


class _Expected(NamedTuple):
    """A proposal as the records so far imply it, and its row in the table."""

    body: dict[str, Any]
    stored: tuple[Any, ...]
    """Its decision, the record of that, and the role that decided."""


class ProposalCheck(TableCheck):
    """Follows each proposal from its record to the one that decides it."""

    TABLE = "proposal"
    ROWS = _PROPOSALS
    WITHOUT_RECORD = _WITHOUT_RECORD
    MADE_BY = Kind.SUBMITTED
    KINDS = frozenset({Kind.SUBMITTED, Kind.REJECTED, Kind.WITHDRAWN, Kind.CONFIRMED, Kind.POLICY})

    def __init__(self, storage: Storage, end: int) -> None:
        super().__init__(storage, end)
        self._open: dict[int, _Expected] = {}
        self._rules = AccessRules()
        self._rules_seq = 0

    def _follow(self, seq: int, kind: Kind, body: dict[str, Any], stored: dict[int, list[Row]]) -> None:
        if kind is Kind.POLICY:
            self._rules, self._rules_seq = AccessRules.of(body["rules"]), seq
        elif kind is Kind.SUBMITTED:
            self._submitted(seq, body, stored.pop(seq, []))
        else:
            submitted = self._decision(seq, kind, body) if body.get("proposal") is not None else None
            if kind is Kind.CONFIRMED:
                self._require_approval(seq, body, submitted)

    def _submitted(self, seq: int, body: dict[str, Any], rows: list[Row]) -> None:
        if len(rows) != 1:
            raise BadRecord(seq, "its row in table proposal is missing" if not rows else "its proposal is there twice")
        plan_id, expires, proposer, second_person, *decision = rows[0]
        recorded = body["plan_id"], body["expires_at"], _role(body), body["second_person"] or ""
        if (plan_id, expires, proposer, second_person) != recorded:
            raise BadRecord(seq, "table proposal does not match it")
        self._open[seq] = _Expected(body, tuple(decision))

    def _decision(self, seq: int, kind: Kind, body: dict[str, Any]) -> dict[str, Any]:
        """The body of the proposal that this record decides."""
        known = self._open.pop(body["proposal"], None)
        if known is None or known.body["plan_hash"] != body["plan_hash"]:
            raise BadRecord(seq, "decides a proposal that is not open, or is another one")
        if known.stored != (DECISIONS[kind].value, seq, _role(body)):
            raise BadRecord(seq, "table proposal does not match it")
        return known.body

    def _require_approval(self, seq: int, body: dict[str, Any], submitted: dict[str, Any] | None) -> None:
        """Every override was approved as the rules on record demanded, by somebody else."""
        changes = {part["backend"]: part["changes"] for part in body["parts"]}
        rule = self._rules.approval_for(changes)
        if submitted is None:
            if rule is not None:
                raise BadRecord(seq, f"was confirmed without the approval that record {self._rules_seq} demands")
            return
        demanded = {submitted["second_person"], None if rule is None else rule.compare.value} - {None}
        same_role = _role(submitted) == _role(body)
        if demanded and (same_person(submitted, body) or (Compare.ROLE in demanded and same_role)):
            raise BadRecord(seq, "was approved by its proposer, although somebody else had to")

    def check_end(self) -> None:
        """Compare what is still open after the last record."""
        for seq, known in sorted(self._open.items()):
            if known.stored != (None, None, None) and not self._decided_later(seq, known):
                raise BadRecord(seq, "table proposal has a decision that is not on record")
        self.require_records()

    def _decided_later(self, seq: int, known: _Expected) -> bool:
        decision, decided, _ = known.stored
        if not isinstance(decided, int) or decided <= self._end:
            return False
        return any(
            DECISIONS.get(Kind(kind)) == decision and json.loads(body).get("proposal") == seq
            for kind, body in select(self._storage, _RECORD, (decided,))
        )


def _role(body: dict[str, Any]) -> str:
    """The database role that wrote a record; empty without a server."""
    return str(body.get("server", {}).get("session_user", ""))
