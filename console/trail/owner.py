"""Who holds a lease, and whether they are still alive."""

from __future__ import annotations

import os
import secrets
import socket
from datetime import datetime, timedelta
from pathlib import Path

SILENCE = timedelta(seconds=60)
"""An owner not heard of for longer than this is taken for dead."""

_DEAD_STATES = ("Z", "X", "x")


def owner_token() -> str:
    """This process, told apart from every other that is or was: host, boot, pid, start, a random part."""
    pid = os.getpid()
    _, started = _stat(pid) or ("", "-")
    return " ".join((socket.gethostname(), _boot(), str(pid), started, secrets.token_hex(8)))


def alive(owner: str, heartbeat: datetime, now: datetime) -> bool:
    """Heard of within the last minute and, if it was on this machine, still the same process."""
    return now - heartbeat <= SILENCE and not _known_dead(owner)


def _known_dead(owner: str) -> bool:
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
    """This boot and this process namespace: in another container the same pid is another process."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return "-"


def _stat(pid: int) -> tuple[str, str] | None:
    """A process's state and when it started, in ticks since boot; None when that cannot be read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return state, fields[18]


def _exists(pid: int) -> bool:
    """Where /proc hides the processes of others, a signal still tells whether there is one."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
