"""The real queues: where their libraries are, how they are installed, and their workers as processes.

What is installed goes into `real_systems` below the virtual environment. Where a library cannot be had, the test is
skipped, and the summary names it with the reason.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from tests.debian import Unavailable, libraries, unpacked
from tests.patience import PATIENCE

HERE = Path(__file__).parent
FOLDER = Path(sys.prefix) / "real_systems"
OBAN = "oban>=0.7,<0.8"
DBOS = "dbos>=3.4,<4"
_BULLMQ = ("bullmq@latest", "pg@latest")
NODE = (
    ("pg-boss@latest", "graphile-worker@latest", *_BULLMQ), ("pg-boss@12.35.0", "graphile-worker@0.18.0", *_BULLMQ)
)
"""The newest releases. A registry may lack what they depend on: then these, which were run before."""
NEEDED = (22, 18)
"""The version of Node.js that their newest releases need."""


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str | None:
    """Why a command failed; None if it did not."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    errors = [line for line in done.stderr.strip().splitlines() if "complete log" not in line]
    return None if done.returncode == 0 else f"{Path(command[0]).name}: {' '.join(errors[-3:])[:300]}"


@contextmanager
def _alone(name: str) -> Iterator[Path]:
    """The folder of a library, while no other test process installs into it."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield folder


@cache
def oban_python() -> Path:
    """A Python that has Oban, which needs version 3.12: this one, or one in a virtual environment of its own."""
    if sys.version_info >= (3, 12) and _run([sys.executable, "-c", "import oban"]) is None:
        return Path(sys.executable)
    with _alone("oban") as folder:
        python = folder / "bin" / "python"
        if not python.exists() or _run([python, "-c", "import oban"]) is not None:
            base = _newer_python() or pytest.skip("Oban: no Python 3.12 or newer on this machine")
            problem = _run([base, "-m", "venv", folder]) or _run([python, "-m", "pip", "install", "-q", OBAN])
            if problem:
                pytest.skip(f"Oban: {problem}")
    return python


@cache
def dbos_python() -> Path:
    """A Python that has DBOS, in a virtual environment of its own."""
    with _alone("dbos") as folder:
        python = folder / "bin" / "python"
        if not python.exists() or _run([python, "-c", "import dbos"]) is not None:
            make, fill = [sys.executable, "-m", "venv", folder], [python, "-m", "pip", "install", "-q", DBOS]
            if problem := _run(make) or _run(fill):
                pytest.skip(f"DBOS: {problem}")
    return python


def _newer_python() -> Path | None:
    names = [shutil.which(f"python3.{minor}") for minor in range(20, 11, -1)]
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"), reverse=True)
    found = (Path(path) for path in [*filter(None, names), *pyenv])
    return next((path for path in found if _run([path, "-c", "import venv"]) is None), None)


@cache
def node_folder() -> tuple[Path, Path]:
    """Node.js, and a folder with the newest pg-boss, Graphile Worker and BullMQ. If this machine's is too old, npm has one."""
    own, npm = shutil.which("node"), shutil.which("npm")
    if own is None or npm is None:
        pytest.skip("pg-boss, Graphile Worker, BullMQ: no node and npm on this machine")
    version = subprocess.run([own, "--version"], capture_output=True, text=True, check=True).stdout
    is_new = tuple(map(int, version.strip().lstrip("v").split(".")[:2])) >= NEEDED
    programs = () if is_new else (f"node@{NEEDED[0]}",)
    with _alone("node") as folder:
        node = Path(own) if is_new else folder / "node_modules" / "node" / "bin" / "node"
        installed = folder / "installed"
        if not installed.exists():
            (folder / "package.json").write_text('{"private": true}')
            problems = (_run([npm, "install", "--no-audit", "--no-fund", *some, *programs], folder) for some in NODE)
            if all(problem := why for why in problems):
                pytest.skip(f"pg-boss, Graphile Worker, BullMQ: {problem}")
            installed.touch()
        for script in HERE.glob("*.mjs"):
            shutil.copy(script, folder)
    return node, folder


@cache
def ruby(*packages: str) -> list[str]:
    """Debian's Ruby with these packages, as the beginning of a command."""
    try:
        root = unpacked(*packages)
    except Unavailable as why:
        pytest.skip(f"{packages[0]}: {why}")
    native = f"usr/lib/{platform.machine()}-linux-gnu"
    (version,) = (path.name for path in (root / "usr/lib/ruby").glob("[0-9]*"))
    code = [f"usr/lib/ruby/vendor_ruby{deep}" for deep in ("", f"/{version}")]
    code += [f"{native}/ruby/vendor_ruby/{version}", f"usr/lib/ruby/{version}", f"{native}/ruby/{version}"]
    gems = [f"usr/share/rubygems-integration/{which}" for which in ("all", version)]
    gems += [f"{native}/rubygems-integration/{version}", f"usr/lib/ruby/gems/{version}"]
    found = {
        "LD_LIBRARY_PATH": libraries(root)["LD_LIBRARY_PATH"], "RUBYLIB": ":".join(str(root / path) for path in code),
        "GEM_PATH": ":".join(str(root / path) for path in gems), "ROOT": str(root),
    }
    program = next(path for path in (root / "usr/bin").glob("ruby[0-9]*"))
    return ["env", *(f"{name}={value}" for name, value in found.items()), str(program)]


def delayed_job(command: str, url: str) -> list[str]:
    where = sa.make_url(url)
    adapter, socket = ("mysql2", "unix_socket") if where.get_backend_name() == "mysql" else ("postgresql", "host")
    return [*ruby("ruby-delayed-job-active-record", "ruby-mysql2", "ruby-pg"), str(HERE / "delayed_job.rb"), command, adapter, str(where.query[socket]), str(where.database)]


@cache
def php(*packages: str) -> list[str]:
    """Debian's PHP with these packages, as the beginning of a command."""
    try:
        root = unpacked(*packages)
    except Unavailable as why:
        pytest.skip(f"{packages[0]}: {why}")
    program = next(path for path in (root / "usr/bin").glob("php[0-9]*"))
    extensions = next(path for path in (root / "usr/lib/php").glob("[0-9]*[0-9][0-9]"))
    # In this order, because some need another.
    names = ("mbstring", "pdo", "pdo_pgsql", "mysqlnd", "pdo_mysql", "ctype", "iconv", "posix", "tokenizer")
    given = {"extension_dir": str(extensions), "include_path": str(root / "usr/share/php")}
    settings = [f"-d{name}={value}" for name, value in given.items()] + [f"-dextension={name}" for name in names]
    libraries_of = libraries(root)["LD_LIBRARY_PATH"]
    return ["env", f"LD_LIBRARY_PATH={libraries_of}", str(program), "-n", *settings]


def laravel(command: str, url: str, *more: str) -> list[str]:
    where = sa.make_url(url)
    driver, socket = ("mysql", "unix_socket") if where.get_backend_name() == "mysql" else ("pgsql", "host")
    begin = php("php-illuminate-queue", "php-illuminate-events", "php-pgsql", "php-mysql", "php-cli")
    return [*begin, str(HERE / "laravel.php"), command, driver, str(where.query[socket]), str(where.database), *more]


def oban(*arguments: str) -> list[str]:
    return [str(oban_python()), str(HERE / "oban_worker.py"), *arguments]


def dbos(*arguments: str) -> list[str]:
    return [str(dbos_python()), str(HERE / "dbos_worker.py"), *arguments]


def python(script: str, *arguments: str) -> list[str]:
    return [sys.executable, str(HERE / script), *arguments]


def node(script: str, *arguments: str) -> list[str]:
    program, folder = node_folder()
    return [str(program), str(folder / script), *arguments]


def call(command: Sequence[str]) -> None:
    assert _run(command) is None, _run(command)


def answer(command: Sequence[str]) -> Any:
    """The JSON that a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@contextmanager
def working(command: Sequence[str]) -> Iterator[None]:
    """The system's own worker, running until the end of the block."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)
    try:
        yield
        assert process.poll() is None, "the worker has ended by itself"
    finally:
        assert process.stdin is not None
        process.stdin.close()
        process.wait(PATIENCE)


def until(done: Callable[[], bool], seconds: float = PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.1)
