"""Checks the stored plans against the records: each recorded plan is there, complete and as it was, unless dropped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from console.core.plan import Block, PlanHash
from console.trail.plans import SEALED, unpacked_plan
from console.trail.record import BadRecord, Kind, a_number, stamp
from console.trail.storage import Row, Storage, select

_PLANS = """SELECT seq, nonce, id, stage, created, expires, body, hash FROM plan WHERE seq > ? AND seq <= ?
    ORDER BY seq, nonce"""
_BLOCKS = "SELECT first, items, body FROM plan_block WHERE nonce = ? AND first > ? ORDER BY first LIMIT ?"
_AT_ONCE = 8
_DROPPED_SINCE = "SELECT seq, body FROM record WHERE seq > ? AND kind = ?"
_WITHOUT_RECORD = """SELECT min(p.seq) FROM plan AS p LEFT JOIN record AS r ON r.seq = p.seq AND r.kind = ?
    WHERE p.seq IS NOT NULL AND r.seq IS NULL"""
_BEFORE_ALL = -(2**63)


class PlanCheck:
    """Follows the records page by page and reads each recorded plan with all its rows."""

    def __init__(self, storage: Storage, end: int) -> None:
        self._storage = storage
        self._end = end
        self._hashes: dict[int, str] = {}
        self._applied: set[int] = set()
        """The records of plans that were confirmed: those are kept for ever."""
        self._bad: dict[int, str] = {}
        """The record of a plan → what is wrong with it. That is right for a plan that was dropped."""

    def check_page(self, records: Sequence[Row]) -> None:
        """Compare the next records; their hashes are verified already."""
        bodies = [(seq, kind, json.loads(body)) for seq, kind, _, body, _, _ in records if kind in _PLAN_KINDS]
        stored: dict[int, list[Row]] = {}
        for seq, *row in select(self._storage, _PLANS, (records[0][0] - 1, records[-1][0])):
            stored.setdefault(seq, []).append(tuple(row))
        for seq, kind, body in bodies:
            try:
                self._follow(seq, kind, body, stored)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise BadRecord(seq, "cannot be read") from None
        for seq in stored:
            raise BadRecord(seq, "table plan has a row without a record")

    def _follow(self, seq: int, kind: str, body: dict[str, Any], stored: dict[int, list[Row]]) -> None:
        match kind:
            case Kind.PLANNED:
                self._hashes[seq] = body["plan_hash"]
                if what := self._problem(body, stored.pop(seq, [])):
                    self._bad[seq] = what
            case Kind.PLAN_DROPPED:
                self._drop(seq, body["planned"])
            case _:
                if kind == Kind.CONFIRMED:
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
        for (seq,) in select(self._storage, _WITHOUT_RECORD, (Kind.PLANNED.value,)):
            if seq is not None:
                raise BadRecord(max(a_number(seq), 1), "table plan has a row without a record")


_PLAN_KINDS = frozenset({kind.value for kind in (Kind.PLANNED, Kind.PLAN_DROPPED, Kind.SUBMITTED, Kind.CONFIRMED)})
