"""Who runs this process and from where: facts from the system, and claims that the user could have set.

A fact is what the kernel tells an unmodified program. A claim is anything from the environment or the config. In a
user namespace, one can mount anything over `/proc`, and the next namespace outside can name users as it likes:
what is read there is a claim too. A user who replaces the program or preloads a library can falsify everything. Only a
PostgreSQL trail has facts of another machine.
"""

from __future__ import annotations

import fcntl
import grp
import os
import pwd
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from console.core.confirm import Origin, Who

_PROC = Path("/proc")
_INITIAL_NAMESPACE = "user:[4026531837]"
"""The namespace of all users that the machine itself knows; the kernel always gives it this number."""
_GET_USER_NAMESPACE = 0xFF09
"""Asks for the user namespace of a process, by its descriptor (Linux 6.11)."""
_PRELOADED = re.compile(r"(?:^|\0)LD_(?:PRELOAD|AUDIT)=([^\0]+)")
_UNSET = 2**32 - 1
_MOST_PARENTS = 12
_CLAIMS = {"sudo_uid": "SUDO_UID", "sudo_user": "SUDO_USER"}


def who(claimed: str, proc: Path = _PROC) -> Who:
    """The user of this process, with the name they claim in the config."""
    uid = os.getuid()
    nested = _namespace(proc) not in ("", _INITIAL_NAMESPACE)
    outside = _uid_outside(uid, proc) if nested else uid
    return Who(uid, str(uid) if outside is None else _name_of(outside), claimed, nested, tuple(_groups()))


def origin(version: str, proc: Path = _PROC) -> Origin:
    """Where this process runs, and from where the user says they reached it."""
    try:
        tty = os.ttyname(sys.stdin.fileno())
    except (OSError, ValueError, AttributeError):
        tty = ""
    peer = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    facts = {
        "user_namespace": _namespace(proc),
        "uid_map": " ".join(_text(proc / "self/uid_map").split()),
        "uid_outside": _uid_outside(os.getuid(), proc),
        "loginuid": _number(proc / "self/loginuid"),
        "audit_session": _number(proc / "self/sessionid"),
        "boot_id": _text(proc / "sys/kernel/random/boot_id"),
        "parents": list(_parents(proc)),
    }
    if preloaded := _preloaded(proc):
        facts["preloaded"] = preloaded
    claims = {name: value for name, variable in _CLAIMS.items() if (value := os.environ.get(variable))}
    return Origin(socket.gethostname(), tty, peer, os.getpid(), version, facts, claims)


def _groups() -> Iterator[str]:
    """The groups that the kernel knows for this process, by name; without those that have none."""
    for number in sorted({os.getgid(), *os.getgroups()}):
        with suppress(KeyError):
            yield grp.getgrgid(number).gr_name


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _namespace(proc: Path) -> str:
    """From the kernel where it can be asked directly, because something else could be mounted over `/proc`."""
    if proc == _PROC and (found := _asked_namespace()):
        return found
    try:
        return str((proc / "self/ns/user").readlink())
    except OSError:
        return ""


def _asked_namespace() -> str:
    with suppress(OSError, AttributeError):  # an older kernel, or another system
        process = os.pidfd_open(os.getpid())
        try:
            namespace = fcntl.ioctl(process, _GET_USER_NAMESPACE)
            try:
                return f"user:[{os.fstat(namespace).st_ino}]"
            finally:
                os.close(namespace)
        finally:
            os.close(process)
    return ""


def _preloaded(proc: Path) -> str:
    """The libraries that this process was started with. A library can remove its name from `os.environ`."""
    started_with = _text(proc / "self/environ")
    named = [*_PRELOADED.findall(started_with), *filter(None, map(os.environ.get, ("LD_PRELOAD", "LD_AUDIT")))]
    return " ".join(dict.fromkeys(named))


def _uid_outside(uid: int, proc: Path) -> int | None:
    """The user in the next namespace outside of this process's own; None if its map does not say."""
    for line in _text(proc / "self/uid_map").splitlines():
        match line.split():
            case [inside, outside, count] if (inside + outside + count).isdecimal():
                if int(inside) <= uid < int(inside) + int(count):
                    return int(outside) + uid - int(inside)
    return None


def _parents(proc: Path) -> Iterator[str]:
    """Process id, user and name of each ancestor. A process chooses its own name."""
    pid = os.getppid()
    for _ in range(_MOST_PARENTS):
        found = re.fullmatch(r"(?s)\d+ \((.*)\) \S (\d+) .*", _text(proc / str(pid) / "stat"))
        if found is None:
            return
        yield f"{pid} uid {_owner(proc / str(pid))} {found[1]}"
        pid = int(found[2])


def _owner(path: Path) -> int | str:
    try:
        return path.stat().st_uid
    except OSError:
        return "?"


def _number(path: Path) -> int | None:
    """A number that the kernel gives; None if it was never set."""
    text = _text(path)
    return int(text) if text.isdecimal() and int(text) != _UNSET else None


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="backslashreplace").strip()
    except OSError:
        return ""
