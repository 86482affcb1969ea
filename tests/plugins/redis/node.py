"""BullMQ's own library: installed by npm below the virtual environment, run by node."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

HOME = Path(sys.prefix) / "bullmq"
APP = Path(__file__).with_name("bullmq_app.mjs")
PACKAGES = ("bullmq@^6", "ioredis@^5")


@cache
def _installed() -> str:
    """Install it once; why it is not there, or nothing."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        return "BullMQ's own library was not run: node and npm are not installed"
    HOME.mkdir(exist_ok=True)
    with (HOME / "lock").open("w") as lock:  # several test processes share it
        fcntl.flock(lock, fcntl.LOCK_EX)
        if all((HOME / "node_modules" / package.partition("@")[0]).exists() for package in PACKAGES):
            return ""
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(HOME), *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        return "" if done.returncode == 0 else f"BullMQ's own library was not run: npm failed: {done.stderr[-200:]}"


class Bull:
    """BullMQ on one database."""

    def __init__(self, url: str) -> None:
        if why := _installed():
            pytest.skip(why)
        path, _, db = url.removeprefix("unix://").partition("?db=")
        self._place = [path, db]

    def run(self, command: str, *arguments: object) -> Any:
        done = subprocess.run(self._command(command, *arguments), env=_environment(), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def is_killed(self, command: str) -> bool:
        """Run a command to its end, and say whether it was killed."""
        done = subprocess.run(self._command(command), env=_environment(), capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode != 0

    def _command(self, command: str, *arguments: object) -> list[str]:
        return ["node", str(APP), command, *self._place, *map(str, arguments)]

    def start(self, command: str, **environment: str) -> subprocess.Popen[str]:
        """A process of its own; it has begun when it has answered."""
        process = subprocess.Popen(
            self._command(command), env={**_environment(), **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "true"
        process.stdout.close()
        return process

    def add(self, prefix: str, number: int, **options: object) -> None:
        self.run("add", prefix, number, json.dumps(options))

    @contextmanager
    def workers(self, number: int = 1) -> Iterator[None]:
        """BullMQ's own workers as processes of their own."""
        processes = [self.start("serve") for _ in range(number)]
        try:
            yield
        finally:
            for process in processes:
                assert process.stdin is not None
                process.stdin.close()
                process.wait(60)


def _environment() -> dict[str, str]:
    return {**os.environ, "BULLMQ_HOME": str(HOME)}
