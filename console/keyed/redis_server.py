"""Connections to a Redis or Valkey server: an allow-list of commands, deadlines, cancelling, faults and costs.

One connection reads and one writes. The reading one refuses every command that is not on the list below before it is
sent, so nothing that this console does by mistake can change the server. The writing one also sends scripts, and it
exists only where the backend was not opened read-only.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha1
from threading import Lock
from typing import Any, NamedTuple

import redis
from redis.backoff import NoBackoff
from redis.connection import BlockingConnectionPool
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004  redis' own, which is no OSError
    NoPermissionError,
    NoScriptError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TimeoutError,  # noqa: A004  as above
)
from redis.retry import Retry

from console.core.budget import charge
from console.core.faults import (
    BackendBusy,
    BackendFault,
    ConfigFault,
    DeadlineExceeded,
    NotPermitted,
    ReadOnlyRefused,
    Unreachable,
    WrongSchema,
)
from console.core.urls import url_parts

CLIENT_NAME = "retriage"
Command = tuple[Any, ...]

_HANDSHAKE = frozenset({"AUTH", "HELLO", "SELECT", "PING", "CLIENT"})
READS = frozenset(
    {
        "TIME", "INFO", "TYPE", "EXISTS", "SCAN", "PTTL", "ACL", "GET", "MGET", "STRLEN",
        "HGET", "HMGET", "HGETALL", "HLEN", "HSCAN",
        "LLEN", "LRANGE", "LINDEX", "LPOS", "SMEMBERS", "SCARD", "SISMEMBER", "SSCAN",
        "ZCARD", "ZCOUNT", "ZRANGE", "ZREVRANGE", "ZRANGEBYSCORE", "ZREVRANGEBYSCORE", "ZRANK", "ZREVRANK", "ZSCORE",
        "ZMSCORE", "ZRANDMEMBER", "ZSCAN", "XLEN", "XRANGE", "XREVRANGE",
    }
)
"""The commands that a backend may send to read. None of them can write."""
_PLAIN_READS = READS - {"ACL"}
_ACL_READS = frozenset({"WHOAMI", "GETUSER", "DRYRUN"})
_CLIENT_SETUP = frozenset({"SETNAME", "SETINFO"})
_SCRIPTS = frozenset({"EVALSHA", "SCRIPT"})
_FIX = "Check the user and password in the URL: redis://USER:${NAME}@HOST, or redis://:${NAME}@HOST without a user."
_SCHEMES = ("redis://", "rediss://", "unix://")


def _guarded(kind: type[Any], allowed: frozenset[str]) -> type[Any]:
    """A connection class that sends the allowed commands only."""

    class Guarded(kind):  # type: ignore[misc]
        def pack_command(self, *args: Any) -> Any:
            _require(args, allowed)
            return super().pack_command(*args)

        def pack_commands(self, commands: Any) -> Any:
            listed = list(commands)
            for command in listed:
                _require(command, allowed)
            return super().pack_commands(listed)

        def send_command(self, *args: Any, **options: Any) -> Any:
            _require(args, allowed)
            return super().send_command(*args, **options)

    return Guarded


def _require(command: Sequence[Any], allowed: frozenset[str]) -> None:
    if command[0] in _PLAIN_READS:
        return
    name, *rest = (part.decode("latin-1") if isinstance(part, bytes) else str(part) for part in command[:2])
    subcommand = rest[0].upper() if rest else ""
    match name.upper():
        case "ACL" if subcommand in _ACL_READS:
            return
        case "CLIENT" if subcommand in _CLIENT_SETUP:
            return
        case other if other in allowed and other not in ("ACL", "CLIENT"):
            return
    raise ReadOnlyRefused(f"{name.upper()} is not a command that reads")


class Script:
    """A Lua script and the digest by which a server knows it."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.digest = sha1(source.encode()).hexdigest()  # noqa: S324  the name that Redis gives to a script


class RedisServer:
    """One server. May be used from several threads at once."""

    def __init__(self, url: str, *, read_only: bool, deadline: timedelta = timedelta(seconds=5)) -> None:
        if not url.startswith(_SCHEMES):
            raise ConfigFault("The URL must start with redis://, rediss:// or unix://")
        self.place = shown_url(url)
        self._read_only = read_only
        self._deadline = deadline.total_seconds()
        self._generation = 0
        self._lock = Lock()
        self._reader = self._client(url, _HANDSHAKE | READS)
        self._writer = None if read_only else self._client(url, _HANDSHAKE | READS | _SCRIPTS)

    def _client(self, url: str, allowed: frozenset[str]) -> Any:  # redis-py does not annotate execute_command
        with self.faults():
            try:
                pool = BlockingConnectionPool.from_url(
                    url,
                    max_connections=1,
                    timeout=self._deadline,
                    client_name=CLIENT_NAME,
                    socket_timeout=self._deadline,
                    socket_connect_timeout=max(self._deadline / 2, 1.0),
                    retry=Retry(NoBackoff(), 0),
                    protocol=2,
                )
                pool.connection_class = _guarded(pool.connection_class, allowed)
                pool.connection_class(**pool.connection_kwargs)  # it connects later, but knows its options
            except (ValueError, TypeError) as error:
                raise ConfigFault(f"The URL cannot be used: {error}", where=self.place) from None
        client = redis.Redis(connection_pool=pool)
        client.response_callbacks.clear()  # replies are read as the server sends them
        return client

    # -- reading -----------------------------------------------------------------------------------

    def call(self, *command: Any) -> Any:
        """One command that reads."""
        return self.pipeline([command])[0]

    def pipeline(self, commands: Sequence[Command]) -> list[Any]:
        """Commands that read, in one round trip. An error in one of them is raised."""
        for command in commands:
            _require(command, READS)
        return self._read([packed(command) for command in commands])

    def _read(self, requests: Sequence[bytes]) -> list[Any]:
        if not requests:
            return []
        generation = self._generation
        with self.faults(generation):
            began = time.perf_counter()
            try:
                return _exchange(self._reader, requests)
            finally:
                charge(time.perf_counter() - began)

    def for_each(self, names: Sequence[bytes], commands: Sequence[PerKey]) -> list[Any]:
        """The same commands for many keys, in one round trip: the replies for the first name, then for the next."""
        for command in commands:
            _require((command.name,), READS)
        return self._read([command.packed(name) for name in names for command in commands])

    def now(self) -> datetime:
        seconds, microseconds = self.call("TIME")
        return datetime.fromtimestamp(int(seconds), UTC) + timedelta(microseconds=int(microseconds))

    def info(self, section: str) -> dict[str, str]:
        """One section of INFO, as text."""
        lines = text(self.call("INFO", section)).splitlines()
        return dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith("#"))

    # -- writing -----------------------------------------------------------------------------------

    def run(self, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
        """Run a script that may write."""
        if self._writer is None:
            raise ReadOnlyRefused(where=self.place)
        with self.faults():
            request = packed(("EVALSHA", script.digest, len(keys), *keys, *arguments))
            try:
                return _exchange(self._writer, [request])[0]
            except NoScriptError:
                self._writer.execute_command("SCRIPT", "LOAD", script.source)
                return _exchange(self._writer, [request])[0]

    # -- ending ------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Abort the read that is running. Its connection is closed, and the next read opens another."""
        with self._lock:
            self._generation += 1
            _disconnect(self._reader)

    def close(self) -> None:
        for client in (self._reader, self._writer):
            if client is not None:
                _disconnect(client)

    @contextmanager
    def faults(self, generation: int | None = None) -> Iterator[None]:
        """Turn what redis-py raises into faults that a person can read."""
        try:
            yield
        except (OSError, ValueError, AttributeError, RedisError) as error:
            if generation is not None and generation != self._generation:
                raise DeadlineExceeded("the read was cancelled", where=self.place) from None
            raise self._fault(error) from None

    def _fault(self, error: Exception) -> BackendFault:
        message = str(error) or type(error).__name__
        match error:
            case TimeoutError() | OSError() if "timed out" in message.lower() or isinstance(error, TimeoutError):
                return DeadlineExceeded(f"no answer within {self._deadline:g} s", where=self.place)
            case AuthenticationError():
                return Unreachable(f"the server refuses this user ({message.rstrip('.')})", where=self.place, fix=_FIX)
            case NoPermissionError() | ReadOnlyError():
                return NotPermitted(message, where=self.place)
            case BusyLoadingError():
                return BackendBusy(message, where=self.place)
            case ConnectionError() | OSError():
                if "No connection available" in message:
                    return BackendBusy("its connection is in use", where=self.place)
                fix = "Check the URL, and that the server runs."
                return Unreachable(message.rstrip("."), where=self.place, fix=fix)
            case ResponseError() if message.startswith("WRONGTYPE") or "against a key holding the wrong" in message:
                return WrongSchema("a key has another type than this queue uses", where=self.place)
            case ResponseError() if message.startswith(("NOAUTH", "WRONGPASS")):
                return Unreachable(f"the server refuses this user ({message.rstrip('.')})", where=self.place, fix=_FIX)
            case ResponseError() if message.startswith("NOPERM"):
                return NotPermitted(message, where=self.place)
            case _:
                return BackendFault(message, where=self.place)


def _exchange(client: Any, requests: Sequence[bytes]) -> list[Any]:
    """Send requests and read as many replies. redis-py itself takes three times as long to write them."""
    pool = client.connection_pool
    connection = pool.get_connection()
    try:
        connection.send_packed_command([b"".join(requests)])
        replies: list[Any] = []
        failed: ResponseError | None = None
        for _ in requests:
            try:
                replies.append(connection.read_response())
            except ResponseError as error:  # the replies to the other requests still have to be read
                failed = failed or error
    except BaseException:
        connection.disconnect()
        raise
    finally:
        pool.release(connection)
    if failed is not None:
        raise failed
    return replies


def _disconnect(client: Any) -> None:
    client.connection_pool.disconnect(inuse_connections=True)


class PerKey(NamedTuple):
    """A command for many keys, which differ only in how they end. The rest of it is packed once."""

    name: str
    prefix: bytes
    head: bytes
    tail: bytes

    @classmethod
    def of(cls, name: str, prefix: bytes, *arguments: str | int) -> PerKey:
        head = b"*%d\r\n%b" % (2 + len(arguments), _argument(name))
        return cls(name, prefix, head, b"".join(map(_argument, arguments)))

    def packed(self, name: bytes) -> bytes:
        """The command for one key, as the server reads it."""
        return b"%b$%d\r\n%b%b\r\n%b" % (self.head, len(self.prefix) + len(name), self.prefix, name, self.tail)


def packed(command: Command) -> bytes:
    """A command as the server reads it."""
    return b"*%d\r\n%b" % (len(command), b"".join(map(_argument, command)))


def _argument(value: Any) -> bytes:
    if type(value) is bytes:
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return _constant(value)


@lru_cache(maxsize=4_096)
def _constant(value: str | int | float) -> bytes:
    """Names of commands and fields, which are the same every time."""
    return _argument(str(value).encode("utf-8", "surrogateescape"))


def shown_url(url: str) -> str:
    """A URL without user, password and options."""
    try:
        parts = url_parts(url)
    except ValueError as error:
        raise ConfigFault(f"The URL cannot be used: {error}") from None
    if parts is None:
        raise ConfigFault("The URL cannot be used: it names no server")
    scheme = parts.before.partition("://")[0]
    hosts = ",".join(f"{host or 'localhost'}{':' + port if port else ''}" for host, port in parts.servers)
    path, _, options = parts.after.partition("?")
    if scheme == "unix":
        hosts = "" if hosts == "localhost" else hosts
    if database := re.search(r"(?:^|&)db=(\d+)", options):
        path += f"?db={database[1]}"
    return f"{scheme}://{hosts}{path}"


def text(raw: Any) -> str:
    """What a reply says, whatever bytes it contains."""
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else "" if raw is None else str(raw)


def raw(value: str) -> bytes:
    """The bytes of a text that was read with `text`; empty for one that no server can hold."""
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return b""


def instant(seconds: float) -> datetime | None:
    """The time of a score in seconds; None if it is no time in the calendar."""
    try:
        return datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (OverflowError, OSError, ValueError):
        return None
