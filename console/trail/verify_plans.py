"""Checks the stored plans against the records: each recorded plan is there, complete and as it was, unless dropped."""

from __future__ import annotations

import json
from typing import Any

from console.core.plan import Block, PlanHash
from console.trail.plans import SEALED, unpacked_plan
from console.trail.record import BadRecord, Kind, stamp
from console.trail.storage import Row, Storage, select
from console.trail.verify_table import TableCheck

_PLANS = """SELECT seq, nonce, id, stage, created, expires, body, hash FROM plan WHERE seq > ? AND seq <= ?
    ORDER BY seq, nonce"""
_BLOCKS = "SELECT first, items, body FROM plan_block WHERE nonce = ? AND first > ? ORDER BY first LIMIT ?"
_AT_ONCE = 8
_DROPPED_SINCE = "SELECT seq, body FROM record WHERE seq > ? AND kind = ?"
_WITHOUT_RECORD = """SELECT min(p.seq) FROM plan AS p LEFT JOIN record AS r ON r.seq = p.seq AND r.kind = ?
    WHERE p.seq IS NOT NULL AND r.seq IS NULL"""
_BEFORE_ALL = -(2**63)


class PlanCheck(TableCheck):
    """Reads each recorded plan with all its rows."""

    TABLE = "plan"
    ROWS = _PLANS
    WITHOUT_RECORD = _WITHOUT_RECORD
    MADE_BY = Kind.PLANNED
    KINDS = frozenset({Kind.PLANNED, Kind.PLAN_DROPPED, Kind.SUBMITTED, Kind.CONFIRMED})

    def __init__(self, storage: Storage, end: int) -> None:
        super().__init__(storage, end)
        self._hashes: dict[int, str] = {}
        self._applied: set[int] = set()
        """The records of plans that were confirmed: those are kept for ever."""
        self._bad: dict[int, str] = {}
        """The record of a plan → what is wrong with it. That is right for a plan that was dropped."""

    def _follow(self, seq: int, kind: Kind, body: dict[str, Any], stored: dict[int, list[Row]]) -> None:
        match kind:
            case Kind.PLANNED:
                self._hashes[seq] = body["plan_hash"]
                if what := self._problem(body, stored.pop(seq, [])):
                    self._bad[seq] = what
            case Kind.PLAN_DROPPED:
                self._drop(seq, body["planned"])
            case _:
                if kind is Kind.CONFIRMED:
                    self._applied.add(body["planned"])
                if self._hashes.get(body["planned"]) != body["plan_hash"]:
                    raise BadRecord(seq, "names another plan than the one on record")

    def _drop(self, seq: int, planned: int) -> None:
        if planned in self._applied:
            raise BadRecord(seq, f"drops the plan of record {planned}, which was applied and so is kept")
        self._bad.pop(planned, None)

    def _problem(self, planned: dict[str, Any], rows: list[Row]) -> str:
        """What is wrong with a recorded plan; nothing if it is as it was."""
        if len(rows) != 1:
            return "its plan is missing" if not rows else "its plan is there twice"
        nonce, plan_id, stage, created, expires, body, digest = rows[0]
        recorded = planned["plan_id"], planned["plan_hash"], planned["expires_at"]
        if (plan_id, digest, expires, stage) != (*recorded, SEALED):
            return "table plan does not match it"
        try:
            plan = unpacked_plan(body, expires, digest)
            if (plan.nonce, stamp(plan.created_at)) != (nonce, created):
                return "table plan does not match it"
            return "" if self._hash_of(nonce, plan) == digest else "the items of its plan were edited or are missing"
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            return "its plan cannot be read"

    def _hash_of(self, nonce: str, plan: Any) -> str:
        digest, last = PlanHash(), _BEFORE_ALL
        while rows := select(self._storage, _BLOCKS, (nonce, last, _AT_ONCE)):
            for row in rows:
                digest.add(Block(*row))
            last = rows[-1][0]
        return digest.seal(plan)

    def check_end(self) -> None:
        """Raises `BadRecord` for the first plan that is not as it was and was not dropped either."""
        for seq, text in select(self._storage, _DROPPED_SINCE, (self._end, Kind.PLAN_DROPPED.value)):
            self._drop(seq, json.loads(text)["planned"])
        for seq, what in sorted(self._bad.items()):
            raise BadRecord(seq, what)
        self.require_records()
