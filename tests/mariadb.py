"""A real MariaDB or MySQL for tests: one server per test process, one database per test.

`RETRIAGE_TEST_MYSQL_URL` names a server to use (its user must be able to create databases). Without it the server of
this machine is run, or that of the Debian package, on a socket in a temporary folder. Where neither is to be had the
tests that need one are skipped, and the summary says why.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pymysql
import pytest
import sqlalchemy as sa

from tests.debian import Unavailable, libraries, unpacked
from tests.leftovers import RUN, kept
from tests.patience import PATIENCE

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
_SETTINGS = (
    "--no-defaults", "--skip-networking", "--innodb-flush-log-at-trx-commit=0", "--sync-binlog=0", "--skip-log-bin",
    "--innodb-buffer-pool-size=64M", "--innodb-log-file-size=32M", "--innodb-doublewrite=0", "--skip-name-resolve",
    "--default-time-zone=+01:00", "--max-allowed-packet=64M",
)


class Server:
    """A running server."""

    def __init__(self, url: str, pid: int | None = None) -> None:
        self.url = url
        self.pid = pid

    @contextmanager
    def database(self, ddl: str = "") -> Iterator[str]:
        """The URL of a database of one's own, with tables in it."""
        name = f"t_{secrets.token_hex(8)}"
        with connection(self.url) as server, server.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name} CHARACTER SET utf8mb4")
            try:
                url = sa.make_url(self.url).set(database=name).render_as_string(hide_password=False)
                with connection(url) as inside, inside.cursor() as run:
                    for statement in filter(str.strip, ddl.split(";\n")):
                        run.execute(statement)
                yield url
            finally:
                cursor.execute(f"DROP DATABASE {name}")


@contextmanager
def connection(url: str, **more: Any) -> Iterator[Any]:
    """A connection of our own, which commits every statement."""
    given = sa.make_url(url)
    where = {"unix_socket": given.query["unix_socket"]} if "unix_socket" in given.query else {"host": given.host, "port": given.port or 3306}
    opened = pymysql.connect(
        user=given.username, password=str(given.password or ""), database=given.database or None, autocommit=True,
        init_command="SET time_zone = '+00:00'", **{**where, **more},
    )
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def started(settings: Sequence[str] = ()) -> Iterator[Server]:
    """A server until the block ends, with these settings in addition to the usual ones."""
    if given := os.environ.get("RETRIAGE_TEST_MYSQL_URL"):
        yield Server(given)
        return
    program, share, environment = _program()
    environment.pop(RUN, None)  # this server outlives the tests, until its test process ends
    home = Path(tempfile.mkdtemp(prefix="my-", dir="/tmp"))  # a socket's path may have at most 107 bytes
    try:
        data, socket = home / "data", home / "socket"
        data.mkdir()
        common = [str(program), *_SETTINGS, *settings, f"--datadir={data}", f"--tmpdir={home}", f"--socket={socket}", f"--pid-file={home}/pid"]
        if share is not None:
            common.append(f"--lc-messages-dir={share}")
        if os.getuid() == 0:
            common.append("--user=root")
        with (home / "log").open("wb") as log:
            system = (share or Path("/usr/share/mysql")).glob("mysql_system_tables*.sql")
            scripts = [path.read_text() for path in sorted(system, key=lambda path: len(path.name))]
            subprocess.run(
                [*common, "--bootstrap", "--skip-grant-tables"], check=True, env=environment, stdout=log, stderr=log, timeout=PATIENCE,
                input="\n".join(["CREATE DATABASE mysql;\nUSE mysql;\nSET @auth_root_socket=NULL;", *scripts]).encode(),
            )
            process = subprocess.Popen(common, env=environment, stdout=log, stderr=log, preexec_fn=_end_with_parent)
        url = f"mysql://root@/mysql?unix_socket={socket}"
        try:
            with kept(process.pid):
                _wait(process, socket, home / "log")
                yield Server(url, process.pid)
        finally:
            process.kill()
            process.wait()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def may_run() -> bool:
    """Whether there is a server, or a way to get one."""
    programs = ("mariadbd", "apt-get")
    return "RETRIAGE_TEST_MYSQL_URL" in os.environ or any(shutil.which(name, path=_PATH) for name in programs)


def _program() -> tuple[Path, Path | None, dict[str, str]]:
    for name in ("mariadbd", "mysqld"):
        found = shutil.which(name, path=_PATH)
        if found and "MariaDB" in subprocess.run([found, "--version"], capture_output=True, text=True, check=False).stdout:
            return Path(found), None, dict(os.environ)
    root = unpacked("mariadb-server-core")
    return root / "usr/sbin/mariadbd", root / "usr/share/mysql", libraries(root)


def _wait(process: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    """Until the server takes connections. The driver leaks a socket that it cannot connect."""
    end = time.monotonic() + PATIENCE
    while not socket.exists() or "ready for connections" not in log.read_text(errors="replace"):
        assert process.poll() is None, log.read_text(errors="replace")[-2000:]
        assert time.monotonic() < end, "the server does not start"
        time.sleep(0.05)


@cache
def server() -> Server:
    """The server of this test process."""
    stack = ExitStack()
    atexit.register(stack.close)
    try:
        return stack.enter_context(started())
    except Unavailable as why:
        pytest.skip(f"MariaDB: {why}")


@contextmanager
def database(ddl: str = "") -> Iterator[str]:
    with server().database(ddl) as url:
        yield url
