"""Leases: only one override at a time may write to a place, and its process must be alive."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from console.core.faults import LeaseLost, OverrideRunning
from console.core.plan import BackendPart
from console.trail.record import legible, moment, stamp
from console.trail.storage import Reading, Row, Writing, stored_text

_AHEAD = timedelta(hours=1)
"""How much the clock of another machine may be ahead of ours."""
SILENCE = timedelta(seconds=60)
"""An owner without a heartbeat for longer than this counts as dead."""

_DEAD_STATES = ("Z", "X", "x")


def owner_token() -> str:
    """A unique name for this process: host, boot, pid, start time and a random part."""
    pid = os.getpid()
    _, started = _stat(pid) or ("", "-")
    return " ".join((socket.gethostname(), _boot(), str(pid), started, secrets.token_hex(8)))


def alive(owner: str, heartbeat: datetime, now: datetime) -> bool:
    """Whether its last heartbeat is recent and, if it runs on this machine, the process still exists.

    A heartbeat from far in the future is none: with it, a dead process would keep its lease for ever.
    """
    return -_AHEAD <= now - heartbeat <= SILENCE and not is_dead(owner)


def is_dead(owner: str) -> bool:
    """Whether the process of this name ran on this machine and has ended."""
    try:
        host, boot, pid, started, _ = owner.split(" ")
    except ValueError:
        return False
    if "-" in (boot, started) or (host, boot) != (socket.gethostname(), _boot()) or not pid.isdigit():
        return False
    found = _stat(int(pid))
    if found is None:
        return not _exists(int(pid))
    state, start = found
    return state in _DEAD_STATES or start != started


def _boot() -> str:
    """This boot and process namespace: in another container the same pid is another process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "-"


def _stat(pid: int) -> tuple[str, str] | None:
    """A process's state and start time in ticks since boot; None when they cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return state, fields[18]


def _exists(pid: int) -> bool:
    """Whether there is such a process. Works also where /proc hides the processes of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


_ALL = "SELECT place, backend, override_id, owner, heartbeat FROM lease ORDER BY place"
_INSERT = "INSERT INTO lease (place, backend, override_id, owner, heartbeat) VALUES (?, ?, ?, ?, ?)"


class Lease(NamedTuple):
    """The right of one process to write to a place."""

    place: str
    backend: str
    override_id: str
    owner: str
    heartbeat: datetime

    def alive(self, now: datetime) -> bool:
        return alive(self.owner, self.heartbeat, now)


def _lease(row: Row) -> Lease:
    place, backend, override_id, owner, heartbeat = row
    with legible(f"the lease of {place}"):
        "".join((place, backend, override_id, owner))  # fails unless these are texts
        if not is_heartbeat(heartbeat):
            raise ValueError(heartbeat)
        return Lease(place, backend, override_id, owner, moment(heartbeat))


def is_heartbeat(found: object) -> bool:
    """Whether the table holds a time there, as it was written."""
    try:
        return isinstance(found, str) and stamp(moment(found)) == found
    except (ValueError, OverflowError):
        return False


def leases(reading: Reading) -> list[Lease]:
    """All leases. There is at most one for each place."""
    return [_lease(row) for row in reading.all(_ALL)]


def take(writing: Writing, parts: Sequence[BackendPart], override_id: str, owner: str, now: datetime) -> list[Lease]:
    """Lease every place, or raise and take none. Returns the leases that were there before."""
    now = writing.now(now)
    wanted = {stored_text(part.place): part.backend for part in parts}
    held = [lease for lease in leases(writing) if lease.place in wanted or lease.override_id == override_id]
    for lease in held:
        if (lease.override_id, lease.owner) != (override_id, owner) and lease.alive(now):
            raise OverrideRunning(f"{lease.override_id} on {lease.backend}", fix="Stop it, or wait until it ends.")
        writing.run("DELETE FROM lease WHERE place = ?", (lease.place,))
    for place, backend in wanted.items():
        writing.run(_INSERT, (place, backend, override_id, owner, stamp(now)))
    return held


def require(writing: Writing, override_id: str, owner: str) -> None:
    """Raise `LeaseLost` unless this owner still has all leases of this override."""
    held = writing.all("SELECT count(*) FROM lease WHERE override_id = ? AND owner = ?", (override_id, owner))[0][0]
    needed = writing.all("SELECT leases FROM override_state WHERE override_id = ?", (override_id,))
    if not needed or not held or held != needed[0][0]:
        raise LeaseLost(override_id)


def beat(writing: Writing, override_id: str, owner: str, now: datetime) -> None:
    """Renew the leases."""
    require(writing, override_id, owner)
    heartbeat = stamp(writing.now(now))
    writing.run("UPDATE lease SET heartbeat = ? WHERE override_id = ? AND owner = ?", (heartbeat, override_id, owner))


def release(writing: Writing, override_id: str) -> None:
    """Delete all leases of this override."""
    writing.run("DELETE FROM lease WHERE override_id = ?", (override_id,))
