"""Who runs this process and from where: facts from the system, and claims that the user could have set.

A fact is what the kernel tells an unmodified program. A claim is anything from the environment or the config. A user
who replaces the program or preloads a library can falsify both. Only a PostgreSQL trail has facts of another machine.
"""

from __future__ import annotations

import os
import pwd
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from console.core.confirm import Origin, Who

_PROC = Path("/proc")
_INITIAL_NAMESPACE = "user:[4026531837]"
"""The namespace of all users that the machine itself knows; the kernel always gives it this number."""
_UNSET = 2**32 - 1
_MOST_PARENTS = 12
_CLAIMS = {"sudo_uid": "SUDO_UID", "sudo_user": "SUDO_USER"}


def who(claimed: str, proc: Path = _PROC) -> Who:
    """The user of this process, with the name they claim in the config."""
    uid = os.getuid()
    nested = _namespace(proc) not in ("", _INITIAL_NAMESPACE)
    outside = _uid_outside(uid, proc) if nested else uid
    return Who(uid, str(uid) if outside is None else _name_of(outside), claimed, nested)


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
    if preloaded := os.environ.get("LD_PRELOAD"):
        facts["preloaded"] = preloaded
    claims = {name: value for name, variable in _CLAIMS.items() if (value := os.environ.get(variable))}
    return Origin(socket.gethostname(), tty, peer, os.getpid(), version, facts, claims)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _namespace(proc: Path) -> str:
    try:
        return str((proc / "self/ns/user").readlink())
    except OSError:
        return ""


def _uid_outside(uid: int, proc: Path) -> int | None:
    """The user outside of this process's namespace; None if its map does not say."""
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
