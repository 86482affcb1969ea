"""Stores plans: their rows are written and read in blocks, never all at once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any

from console.core.advice import Advice, Step
from console.core.backend import Attempts, Operation
from console.core.confirm import Origin, Who, recorded
from console.core.faults import NoSuchPlan, PlanAltered, PlanStale
from console.core.pace import unpacked_pace
from console.core.plan import BackendPart, Block, Digests, Plan, PlanRow, unpack
from console.core.ports import Clock
from console.sql.database import read_ahead
from console.trail.record import Chain, Head, Kind, link, moment, stamp
from console.trail.storage import Row, Storage, Writing, select, stored_text

BATCH = 5_000
KEPT_AFTER_EXPIRY = timedelta(hours=1)
UNFINISHED_KEPT = timedelta(days=1)
"""How long the rows of an unsealed plan are kept: it may still be in the making."""

_CAUSES_RECORDED = 100
"""A record names at most this many causes of its plan, the most frequent ones."""
_PURGED_AT_ONCE, _PURGED_PER_SEAL = 8, 40
"""Blocks of rows."""

_OPEN, SEALED, _PURGING = 0, 1, 2
"""The stages of a plan: rows are being added; complete; being purged."""

_BY_PREFIX = """SELECT id, body, expires, hash FROM plan
    WHERE stage = ? AND substr(id, 1, ?) = ? ORDER BY length(id), id LIMIT 2"""
_HOLDING = """SELECT first, items FROM plan_block
    WHERE nonce = (SELECT nonce FROM plan WHERE id = ?) AND first <= ? ORDER BY first DESC LIMIT 1"""
_BLOCK = """SELECT first, items, body FROM plan_block
    WHERE nonce = (SELECT nonce FROM plan WHERE id = ?) AND first >= ? AND first <= ? ORDER BY first LIMIT 1"""
_ADD = "INSERT INTO plan_block (nonce, first, items, body) VALUES (?, ?, ?, ?)"
_SEAL = "UPDATE plan SET id = ?, stage = ?, created = ?, expires = ?, body = ?, hash = ? WHERE nonce = ?"
_PURGE = """DELETE FROM plan_block WHERE nonce = ? AND first IN
    (SELECT first FROM plan_block WHERE nonce = ? ORDER BY first LIMIT ?)"""
_UNUSED = """SELECT nonce, id, hash, seq FROM plan WHERE ((stage = 1 AND expires < ?) OR (stage = 0 AND created < ?))
    AND NOT EXISTS (SELECT 1 FROM override_state AS o WHERE o.plan_id = plan.id)
    AND NOT EXISTS (SELECT 1 FROM proposal AS s WHERE s.plan_id = plan.id AND s.decided IS NULL AND s.expires >= ?)"""
_APPLIED_AS = "SELECT override_id FROM override_state WHERE plan_id = ?"
_RECORD_OF = """SELECT r.seq, r.kind, r.at, r.body, r.prev, r.hash FROM plan AS p
    LEFT JOIN record AS r ON r.seq = p.seq WHERE p.id = ? AND p.stage = ? AND p.seq IS NOT NULL"""


class Plans:
    """The part of the trail that stores plans."""

    _storage: Storage
    _clock: Clock
    _chain: Chain
    _held: dict[str, Digests]
    """The plans that are applied in this process: their rows must stay as they are."""

    def add_blocks(self, nonce: str, blocks: Sequence[Block]) -> None:
        """Not durable until `seal`. Unsealed plans are purged later."""

        def work(writing: Writing) -> None:
            _open(writing, nonce, self._clock.now())
            for block in blocks:
                writing.run(_ADD, (nonce, *block))

        self._storage.write(work, lasting=False)

    def seal(self, plan: Plan) -> None:
        now = self._clock.now()

        def work(writing: Writing) -> None:
            _open(writing, plan.nonce, now)
            writing.run(
                _SEAL,
                (plan.id, SEALED, stamp(plan.created_at), stamp(plan.expires_at), json.dumps(plan.body()), plan.hash,
                 plan.nonce),
            )
            expired = stamp(now - KEPT_AFTER_EXPIRY)
            for row in writing.all(_UNUSED, (expired, stamp(now - UNFINISHED_KEPT), expired)):
                self._drop(writing, row, "expired", now)

        self._storage.write(work)
        self._purge(_PURGED_PER_SEAL)

    def record_plan(self, plan: Plan, who: Who, origin: Origin, now: datetime) -> None:
        def work(writing: Writing) -> Head | None:
            return self.recorded_in(writing, plan, who, origin, now)[1]

        head = self._storage.write(work)
        if head is not None:
            self._chain.remember(head)

    def recorded_in(
        self, writing: Writing, plan: Plan, who: Who, origin: Origin, now: datetime
    ) -> tuple[int, Head | None]:
        """The number of the plan's record, and the record itself if it is made now. Refused for another plan, or one
        that was applied."""
        found = writing.all("SELECT hash, expires, seq FROM plan WHERE id = ? AND stage = ?", (plan.id, SEALED))
        if not found:
            raise PlanStale("The plan is no longer in the trail", fix="Make a new plan.")
        for (override_id,) in writing.all(_APPLIED_AS, (plan.id,)):
            raise PlanStale(f"The plan was applied already, as {override_id}", fix="Make a new plan.")
        *stored, seq = found[0]
        if stored != [plan.hash, stamp(plan.expires_at)]:
            raise _altered(plan.id)
        if seq is not None:
            if _recorded(plan.id, writing.all(_RECORD_OF, (plan.id, SEALED))) != (plan.hash, plan.expires_at):
                raise _altered(plan.id)
            return seq, None
        body = {**plan_facts(plan), **recorded(who, origin)}
        head = self._chain.append(writing, Kind.PLANNED, now, body)
        writing.run("UPDATE plan SET seq = ? WHERE id = ?", (head.seq, plan.id))
        return head.seq, head

    def planned(self, plan_id: str) -> tuple[str, datetime] | None:
        """Read from the record, because the table could have been edited."""
        return _recorded(plan_id, select(self._storage, _RECORD_OF, (plan_id, SEALED)))

    def discard(self, plan_id: str) -> None:
        """Refused for a plan that was applied: undoing and settling need its rows. A proposal keeps its plan."""
        if not select(self._storage, "SELECT 1 FROM plan WHERE id = ?", (plan_id,)):
            return  # do not create a trail only to delete from it

        def work(writing: Writing) -> None:
            if writing.all(_APPLIED_AS, (plan_id,)):
                raise PlanStale("The plan was applied and is kept")
            if writing.all("SELECT 1 FROM proposal WHERE plan_id = ? AND decided IS NULL", (plan_id,)):
                return
            for row in writing.all("SELECT nonce, id, hash, seq FROM plan WHERE id = ?", (plan_id,)):
                self._drop(writing, row, "discarded", self._clock.now())

        self._storage.write(work, lasting=False)
        self._purge(None)

    def _drop(self, writing: Writing, row: Row, why: str, now: datetime) -> None:
        """Mark a plan for purging. If it was recorded, its end is recorded too."""
        nonce, plan_id, digest, seq = row
        writing.run("UPDATE plan SET stage = ? WHERE nonce = ?", (_PURGING, nonce))
        if seq is not None:
            body = {"plan_id": plan_id, "plan_hash": digest, "planned": seq, "note": why}
            self._chain.append(writing, Kind.PLAN_DROPPED, now, body)

    def _purge(self, most: int | None) -> None:
        """Delete the rows of plans that are no longer needed, in short transactions, so that no writer waits long."""
        purged = 0
        while most is None or purged < most:
            deleted = self._storage.write(_purge_some, lasting=False)
            if deleted is None:
                return
            purged += deleted

    def plan(self, plan_id: str) -> Plan:
        prefix = stored_text(plan_id)
        rows = select(self._storage, _BY_PREFIX, (SEALED, len(prefix), prefix))
        found = only(rows, plan_id)
        if found is None:
            several = len(rows) > 1 and plan_id
            raise NoSuchPlan(f"several begin with {plan_id!r}" if several else repr(plan_id))
        try:
            plan = unpacked_plan(*found[1:])
            if plan.id == found[0]:
                return plan
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
            pass
        raise _altered(found[0])

    def rows(self, plan_id: str, first: int, last: int) -> Iterator[list[PlanRow]]:
        """Read ahead in another thread, because applying a plan mostly waits for a database."""
        return read_ahead(self._rows(plan_id, first, last))

    def _rows(self, plan_id: str, first: int, last: int) -> Iterator[list[PlanRow]]:
        for block in self.blocks(plan_id, first, last):
            if rows := unpack(block)[max(first - block.first, 0) : last - block.first + 1]:
                yield rows

    @contextmanager
    def holding(self, plan_id: str, digests: Digests) -> Iterator[None]:
        """The rows are read while the override runs, which may take hours, and the table could be edited meanwhile."""
        self._held[plan_id] = digests
        try:
            yield
        finally:
            self._held.pop(plan_id, None)

    def blocks(self, plan_id: str, first: int, last: int) -> Iterator[Block]:
        held = self._held.get(plan_id)
        if held is None:
            yield from self._blocks(plan_id, first, last)
            return
        wanted = iter([start for start in sorted(held) if start <= last and first < start + held[start][0]])
        for block in self._blocks(plan_id, first, last):
            if next(wanted, None) != block.first or held[block.first] != block.digest():
                raise _altered(plan_id)
            yield block
        if next(wanted, None) is not None:
            raise _altered(plan_id)

    def _blocks(self, plan_id: str, first: int, last: int) -> Iterator[Block]:
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
    return PlanAltered(
        plan_id, fix="Make a new plan; do not apply this one.", advice=Advice(Step.VERIFY_TRAIL)
    )


def only(rows: Sequence[Row], wanted: str) -> Row | None:
    """The row with this id, or with the only id that starts with it."""
    exact = [row for row in rows if row[0] == wanted]
    if exact:
        return exact[0]
    return rows[0] if len(rows) == 1 and wanted else None


def plan_facts(plan: Plan) -> dict[str, Any]:
    """What records say about a plan."""
    body = plan.body()
    kept = ("action", "attempts", "flags", "pace", "selection", "undo_of", "parts", "skipped", "warnings")
    named = {"plan_id": plan.id, "plan_hash": plan.hash, "expires_at": stamp(plan.expires_at)}
    causes = dict(Counter(plan.by_cause).most_common(_CAUSES_RECORDED))
    return {**named, **{name: body[name] for name in kept}, "items": plan.changes, "causes": causes}


def _recorded(plan_id: str, rows: Sequence[Row]) -> tuple[str, datetime] | None:
    """The hash and expiry in the record of a plan; None if it has no record."""
    for seq, kind, at, body, prev, digest in rows:
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            planned = json.loads(body)
            if kind == Kind.PLANNED and link(prev, seq, kind, at, body) == digest:
                return str(planned["plan_hash"]), moment(planned["expires_at"])
        raise _altered(plan_id)
    return None


def _open(writing: Writing, nonce: str, now: datetime) -> None:
    stage = writing.all("SELECT stage FROM plan WHERE nonce = ?", (nonce,))
    if not stage:
        # Until it is sealed, a plan has no hash, and so no id of its own.
        opened = (nonce, nonce, _OPEN, stamp(now))
        writing.run("INSERT INTO plan (nonce, id, stage, created) VALUES (?, ?, ?, ?)", opened)
    elif stage[0][0] != _OPEN:
        raise PlanAltered("rows were added after it was sealed")


def _purge_some(writing: Writing) -> int | None:
    """Delete some blocks of one plan that is to be purged. Returns how many; None when nothing is left to purge."""
    found = writing.all("SELECT nonce FROM plan WHERE stage = ? LIMIT 1", (_PURGING,))
    if not found:
        return None
    nonce = found[0][0]
    deleted = writing.run(_PURGE, (nonce, nonce, _PURGED_AT_ONCE))
    if deleted < _PURGED_AT_ONCE:
        writing.run("DELETE FROM plan WHERE nonce = ?", (nonce,))
    return deleted


def unpacked_plan(text: str, expires: str, digest: str) -> Plan:
    """A plan from its stored body. Raises one of many errors if the text is not what `seal` wrote."""
    body = json.loads(text)
    operation = Operation(
        str(body["action"]), Attempts(body["attempts"]), frozenset(map(str, body["flags"]))
    )
    parts = tuple(BackendPart(**{**part, "guard": tuple(part["guard"])}) for part in body["parts"])
    return Plan(
        nonce=body["nonce"], created_at=moment(body["created_at"]), expires_at=moment(expires),
        operation=operation, pace=unpacked_pace(body["exact_pace"]), selection=body["selection"], parts=parts,
        by_condition=body["by_condition"], by_cause=body["by_cause"], skipped=body["skipped"],
        warnings=body["warnings"],
        advice={text: Advice(Step(step), value) for text, (step, value) in body["advice"].items()},
        undo_of=body["undo_of"], hash=digest,
    )
