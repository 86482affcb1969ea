"""What `retriage check` says about a Redis server, whichever system uses it."""

from __future__ import annotations

from datetime import timedelta

from console.core.backend import Finding, Severity
from console.core.faults import BackendFault
from console.core.ports import Clock
from console.core.text import countdown
from console.keyed.redis_server import RedisServer, text

_SKEW = timedelta(seconds=5)
_OLDEST = (6, 2)


def version_finding(server: RedisServer) -> Finding | None:
    """An error if the server is too old."""
    info = server.info("server")
    version = info.get("valkey_version") or info.get("redis_version", "")
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers >= _OLDEST:
        return None
    shown = f"the server is version {version or 'unknown'}"
    return Finding(Severity.ERROR, "schema", shown, "Use Redis 6.2 or newer, or Valkey.")


def clock_finding(server: RedisServer, clock: Clock) -> Finding:
    skew = abs(server.now() - clock.now())
    if skew <= _SKEW:
        return Finding(Severity.OK, "clock", "agrees with this machine")
    shown = f"differs from this machine by {countdown(skew)}"
    return Finding(Severity.WARNING, "clock", shown, "Synchronise the clocks.")


def privileges_finding(server: RedisServer, *, read_only: bool) -> Finding:
    """Whether the user of the connection could write."""
    try:
        user = text(server.call("ACL", "WHOAMI"))
        could = text(server.call("ACL", "DRYRUN", user, "SET", "retriage:check", "1")) == "OK"
    except BackendFault:
        shown = "cannot tell whether this user could write: the server does not answer ACL DRYRUN"
        return Finding(Severity.OK, "privileges", shown)
    if not read_only:
        return Finding(Severity.OK, "privileges", f"user {user} may {'write' if could else 'only read'}")
    if could:
        shown = f"user {user} could write; only this console refuses to"
        return Finding(Severity.WARNING, "privileges", shown, "Use an ACL user with +@read only.")
    return Finding(Severity.OK, "privileges", f"user {user} cannot write")
