"""Leases: one running override per place, held by a process that is alive."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from console.core.faults import LeaseLost, OverrideRunning
from console.core.plan import Share
from console.trail.owner import alive
from console.trail.record import moment, stamp
from console.trail.storage import Reading, Row, Writing
from console.trail.texts import stored_text

_ALL = "SELECT place, backend, op_id, owner, heartbeat FROM lease ORDER BY place"
_INSERT = "INSERT INTO lease (place, backend, op_id, owner, heartbeat) VALUES (?, ?, ?, ?, ?)"


class Lease(NamedTuple):
    """Who may write to a place."""

    place: str
    backend: str
    op_id: str
    owner: str
    heartbeat: datetime

    def alive(self, now: datetime) -> bool:
        return alive(self.owner, self.heartbeat, now)


def _lease(row: Row) -> Lease:
    place, backend, op_id, owner, heartbeat = row
    return Lease(place, backend, op_id, owner, moment(heartbeat))


def leases(reading: Reading) -> list[Lease]:
    """All of them; there are never more than places."""
    return [_lease(row) for row in reading.all(_ALL)]


def take(writing: Writing, shares: Sequence[Share], op_id: str, owner: str, now: datetime) -> list[Lease]:
    """Lease every place, or raise and take none; the leases of dead owners that had to give way."""
    now = writing.now(now)
    wanted = {stored_text(share.place): share.backend for share in shares}
    held = [lease for lease in leases(writing) if lease.place in wanted or lease.op_id == op_id]
    for lease in held:
        if (lease.op_id, lease.owner) != (op_id, owner) and lease.alive(now):
            raise OverrideRunning(f"{lease.op_id} on {lease.backend}", fix="Stop it or wait for its end.")
        writing.run("DELETE FROM lease WHERE place = ?", (lease.place,))
    for place, backend in wanted.items():
        writing.run(_INSERT, (place, backend, op_id, owner, stamp(now)))
    return held


def insist(writing: Writing, op_id: str, owner: str) -> None:
    """Every place of this override is still leased to this owner."""
    held = writing.all("SELECT count(*) FROM lease WHERE op_id = ? AND owner = ?", (op_id, owner))[0][0]
    needed = writing.all("SELECT leases FROM override_state WHERE op_id = ?", (op_id,))
    if not needed or not held or held != needed[0][0]:
        raise LeaseLost(op_id)


def beat(writing: Writing, op_id: str, owner: str, now: datetime) -> None:
    insist(writing, op_id, owner)
    heard = stamp(writing.now(now))
    writing.run("UPDATE lease SET heartbeat = ? WHERE op_id = ? AND owner = ?", (heard, op_id, owner))


def give_back(writing: Writing, op_id: str) -> None:
    writing.run("DELETE FROM lease WHERE op_id = ?", (op_id,))
