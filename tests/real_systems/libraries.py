"""The real queues: where their libraries are, how they are installed, and their workers as processes.

What is installed goes into `real_systems` below the virtual environment. Where a library cannot be had, the test is
skipped, and the summary names it with the reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from tests.patience import PATIENCE

HERE = Path(__file__).parent
FOLDER = Path(sys.prefix) / "real_systems"
OBAN = "oban>=0.7,<0.8"
NODE = ("pg-boss", "graphile-worker")


def _run(command: Sequence[str | Path], folder: Path | None = None) -> str | None:
    """Why a command failed; None if it did not."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    return None if done.returncode == 0 else f"{Path(command[0]).name}: {done.stderr.strip().splitlines()[-1:]}"


@cache
def oban_python() -> Path:
    """A Python that has Oban, which needs version 3.12: this one, or one in a virtual environment of its own."""
    if sys.version_info >= (3, 12) and _run([sys.executable, "-c", "import oban"]) is None:
        return Path(sys.executable)
    python = FOLDER / "oban" / "bin" / "python"
    if not python.exists() or _run([python, "-c", "import oban"]) is not None:
        base = _newer_python() or pytest.skip("Oban: no Python 3.12 or newer on this machine")
        problem = _run([base, "-m", "venv", python.parents[1]]) or _run([python, "-m", "pip", "install", "-q", OBAN])
        if problem:
            pytest.skip(f"Oban: {problem}")
    return python


def _newer_python() -> Path | None:
    names = [shutil.which(f"python3.{minor}") for minor in range(20, 11, -1)]
    pyenv = sorted(Path.home().glob(".pyenv/versions/3.1[2-9]*/bin/python"), reverse=True)
    found = (Path(path) for path in [*filter(None, names), *pyenv])
    return next((path for path in found if _run([path, "-c", "import venv"]) is None), None)


@cache
def node_folder() -> Path:
    """A folder with the newest pg-boss and Graphile Worker that this Node.js can run."""
    node, npm, folder = shutil.which("node"), shutil.which("npm"), FOLDER / "node"
    if node is None or npm is None:
        pytest.skip("pg-boss, Graphile Worker: no node and npm on this machine")
    if not all((folder / "node_modules" / name / "package.json").exists() for name in NODE):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        if problem := _run([npm, "install", "--no-audit", "--no-fund", *NODE], folder):
            pytest.skip(f"pg-boss, Graphile Worker: {problem}")
    for script in HERE.glob("*.mjs"):
        shutil.copy(script, folder)
    return folder


def oban(*arguments: str) -> list[str]:
    return [str(oban_python()), str(HERE / "oban_worker.py"), *arguments]


def node(script: str, *arguments: str) -> list[str]:
    return [str(shutil.which("node")), str(node_folder() / script), *arguments]


def call(command: Sequence[str]) -> None:
    assert _run(command) is None, _run(command)


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
