"""Other processes for tests: with another user's rights, with little room, or about to be killed."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
NOBODY = 65534
PRELUDE = "import sys, tests.faultpoint; from tests.trail.world import *; from console.core.faults import *; from console.core.override import *\n"


def python(code: str, *arguments: str, prepare: Callable[[], None] | None = None, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *arguments], cwd=ROOT, text=True, preexec_fn=prepare,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **env},
    )


def output(process: subprocess.Popen[str]) -> str:
    """What it printed; fails with what it complained about."""
    said, complaint = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, complaint
    return said.strip()


def as_nobody() -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


def with_little_room() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
