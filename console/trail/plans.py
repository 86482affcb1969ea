"""Plans in the book: working data, written in bulk, read in batches, never a million objects at once."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from console.core.backend import Action, Budget, Flag, Order
from console.core.faults import NoSuchPlan, PlanAltered, PlanStale
from console.core.packing import Block, PlanRows, unpack
from console.core.plan import Plan, Share
from console.core.ports import Clock
from console.core.release import Canary, Now, Over, Rate, Release
from console.sql.ahead import ahead
from console.trail.record import moment, stamp
from console.trail.storage import Row, Storage, Writing, select
from console.trail.texts import stored_text

BATCH = 5_000
KEPT_AFTER_EXPIRY = timedelta(hours=1)
UNFINISHED_KEPT = timedelta(days=1)
"""How long rows of a plan that was never sealed are kept: whoever proposes it may still be at it."""

_PURGED_AT_ONCE, _PURGED_PER_SEAL = 8, 40
"""Blocks of rows."""

_OPEN, _SEALED, _DOOMED = 0, 1, 2
"""The stages of a plan: rows are being added; complete; being purged."""

_BY_PREFIX = """SELECT id, body, release, hash FROM plan
    WHERE stage = ? AND substr(id, 1, ?) = ? ORDER BY length(id), id LIMIT 2"""
_HOLDING = "SELECT first, items FROM plan_block WHERE plan = ? AND first <= ? ORDER BY first DESC LIMIT 1"
_BLOCK = """SELECT first, items, body FROM plan_block
    WHERE plan = ? AND first >= ? AND first <= ? ORDER BY first LIMIT 1"""
_ADD = "INSERT INTO plan_block (plan, first, items, body) VALUES (?, ?, ?, ?)"
_SEAL = "UPDATE plan SET stage = ?, created = ?, expires = ?, body = ?, release = ?, hash = ? WHERE id = ?"
_PURGE = """DELETE FROM plan_block WHERE plan = ? AND first IN
    (SELECT first FROM plan_block WHERE plan = ? ORDER BY first LIMIT ?)"""
_DOOM = """UPDATE plan SET stage = 2 WHERE begun IS NULL
    AND ((stage = 1 AND expires < ?) OR (stage = 0 AND created < ?))"""


class Plans:
    """The part of the book that keeps plans."""

    _storage: Storage
    _clock: Clock

    def add_blocks(self, plan_id: str, blocks: Sequence[Block]) -> None:
        """Not yet durable; `seal` makes it so, and what was never sealed is purged one day."""

        def work(writing: Writing) -> None:
            _open(writing, plan_id, self._clock.now())
            for block in blocks:
                writing.run(_ADD, (plan_id, *block))

        self._storage.write(work, lasting=False)

    def seal(self, plan: Plan) -> None:
        now = self._clock.now()

        def work(writing: Writing) -> None:
            _open(writing, plan.id, now)
            writing.run(
                _SEAL,
                (_SEALED, stamp(plan.created_at), stamp(plan.expires_at), json.dumps(plan.body()),
                 json.dumps(_packed(plan.release)), plan.hash, plan.id),
            )
            writing.run(_DOOM, (stamp(now - KEPT_AFTER_EXPIRY), stamp(now - UNFINISHED_KEPT)))

        self._storage.write(work)
        self._purge(_PURGED_PER_SEAL)

    def discard(self, plan_id: str) -> None:
        """Refused for a plan that was applied: its rows are needed to undo and to settle."""
        if not select(self._storage, "SELECT 1 FROM plan WHERE id = ?", (plan_id,)):
            return  # and no trail is created for the sake of forgetting

        def work(writing: Writing) -> None:
            if writing.all("SELECT 1 FROM plan WHERE id = ? AND begun IS NOT NULL", (plan_id,)):
                raise PlanStale("it was applied and is kept")
            writing.run("UPDATE plan SET stage = ? WHERE id = ?", (_DOOMED, plan_id))

        self._storage.write(work, lasting=False)
        self._purge(None)

    def _purge(self, most: int | None) -> None:
        """Delete rows of plans that nobody needs, in short transactions, so that no writer waits long."""
        purged = 0
        while most is None or purged < most:
            deleted = self._storage.write(_purge_some, lasting=False)
            if deleted is None:
                return
            purged += deleted

    def plan(self, plan_id: str) -> Plan:
        prefix = stored_text(plan_id)
        rows = select(self._storage, _BY_PREFIX, (_SEALED, len(prefix), prefix))
        found = only(rows, plan_id)
        if found is None:
            what = f"several plans begin with {plan_id!r}" if len(rows) > 1 and plan_id else repr(plan_id)
            raise NoSuchPlan(what)
        try:
            plan = _unpacked(found)
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            raise _altered(found[0]) from None
        if plan.id != found[0]:
            raise _altered(found[0])
        return plan

    def rows(self, plan_id: str, first: int, last: int) -> Iterator[PlanRows]:
        """Read and unpacked ahead: whoever carries a plan out mostly waits for a database."""
        return ahead(self._rows(plan_id, first, last))

    def _rows(self, plan_id: str, first: int, last: int) -> Iterator[PlanRows]:
        for block in self.blocks(plan_id, first, last):
            if rows := unpack(block)[max(first - block.first, 0) : last - block.first + 1]:
                yield rows

    def blocks(self, plan_id: str, first: int, last: int) -> Iterator[Block]:
        for start, items in select(self._storage, _HOLDING, (plan_id, first)):
            if not isinstance(items, int):
                raise _altered(plan_id)
            first = start if first < start + items else first
        while found := select(self._storage, _BLOCK, (plan_id, first, last)):
            block = Block(*found[0])
            if not isinstance(block.body, bytes):
                raise _altered(plan_id)
            yield block
            if block.first + block.items > last:
                return
            first = block.first + 1


def _altered(plan_id: str) -> PlanAltered:
    return PlanAltered(f"plan {plan_id}", fix="Propose again; do not apply it. Run `retriage trail verify`.")


def only(rows: Sequence[Row], wanted: str) -> Row | None:
    """The row whose id was asked for, in full or by a prefix that fits no other."""
    exact = [row for row in rows if row[0] == wanted]
    if exact:
        return exact[0]
    return rows[0] if len(rows) == 1 and wanted else None


def _open(writing: Writing, plan_id: str, now: datetime) -> None:
    stage = writing.all("SELECT stage FROM plan WHERE id = ?", (plan_id,))
    if not stage:
        writing.run("INSERT INTO plan (id, stage, created) VALUES (?, ?, ?)", (plan_id, _OPEN, stamp(now)))
    elif stage[0][0] != _OPEN:
        raise PlanAltered("a sealed plan takes no more rows")


def _purge_some(writing: Writing) -> int | None:
    """How many rows of one doomed plan were deleted; None when there is none left."""
    doomed = writing.all("SELECT id FROM plan WHERE stage = ? LIMIT 1", (_DOOMED,))
    if not doomed:
        return None
    plan_id = doomed[0][0]
    deleted = writing.run(_PURGE, (plan_id, plan_id, _PURGED_AT_ONCE))
    if deleted < _PURGED_AT_ONCE:
        writing.run("DELETE FROM plan WHERE id = ?", (plan_id,))
    return deleted


def begin_plan(writing: Writing, plan: Plan, op_id: str) -> None:
    """The plan belongs to this override from now on; no other may begin it."""
    found = writing.all("SELECT hash, begun FROM plan WHERE id = ? AND stage = ?", (plan.id, _SEALED))
    if not found:
        raise PlanStale("it is not in the trail any more")
    stored, begun = found[0]
    if begun is not None:
        raise PlanStale(f"it was applied before, as {begun}")
    if stored != plan.hash:
        raise _altered(plan.id)
    writing.run("UPDATE plan SET begun = ? WHERE id = ?", (op_id, plan.id))


def _packed(release: Release) -> list[Any]:
    """Exactly, where its words are rounded: the after-images are computed from it again."""
    match release:
        case Over(window):
            return ["over", window // timedelta(microseconds=1)]
        case Rate(per_second):
            return ["rate", per_second]
        case Canary(size):
            return ["canary", size]
        case Now():
            return ["now", 0]


def _release(packed: list[Any]) -> Release:
    kind, number = packed
    match kind:
        case "over":
            return Over(timedelta(microseconds=number))
        case "rate":
            return Rate(number)
        case "canary":
            return Canary(number)
        case _:
            return Now()


def _unpacked(row: Row) -> Plan:
    _, text, release, digest = row
    body = json.loads(text)
    order = Order(
        Action(body["action"]), Budget(body["budget"]), frozenset(Flag(flag) for flag in body["flags"])
    )
    shares = tuple(Share(**{**share, "guard": tuple(share["guard"])}) for share in body["shares"])
    return Plan(
        id=body["id"], created_at=moment(body["created_at"]), expires_at=moment(body["expires_at"]),
        order=order, release=_release(json.loads(release)), selection=body["selection"], shares=shares,
        by_condition=body["by_condition"], by_signature=body["by_signature"], blocked=body["blocked"],
        warnings=body["warnings"], undo_of=body["undo_of"], hash=digest,
    )
