"""Start-up: whole processes, against the least a Python process could do."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.data import CACHE, async_tasks
from benchmarks.measure import Result, compare

INSTALLED = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
"""Installed libraries have compiled byte code; so must what is measured against them."""
RETRIAGE = str(Path(sys.executable).with_name("retriage"))


def _run(*command: str) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=INSTALLED)


def cases(quick: bool) -> Iterator[Result]:
    turns = 7 if quick else 15
    path = async_tasks(200_000 if quick else 1_000_000)
    config = CACHE / "config.yaml"
    config.write_text(f"backends:\n  queue: {{plugin: sqlite_queue, url: 'sqlite:///{path.absolute()}'}}\n")
    config.chmod(0o600)
    yield compare("retriage --version", 5.0, lambda: _run(RETRIAGE, "--version"),
                  lambda: _run(sys.executable, "-c", "pass"), turns=turns, note="against python -c pass")
    listed: Sequence[str] = (RETRIAGE, "--config", str(config), "list", "--format", "jsonl")
    yield compare("retriage list", 1.4, lambda: _run(*listed),
                  lambda: _run(sys.executable, "-c", "import sqlalchemy, pydantic, yaml"),
                  turns=turns, note="against its imports")


