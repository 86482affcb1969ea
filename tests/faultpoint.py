"""Kills this process at a named point, to prove that nothing is lost there. A child process of a test imports it.

`RETRIAGE_FAULT_POINT=name` kills it when it first reaches that point, `name:3` at the third time. The points are those
of `console.trail.faultpoint`.
"""

from __future__ import annotations

import os
import signal

from console.trail import faultpoint

_name, _, _count = os.environ.get("RETRIAGE_FAULT_POINT", "").partition(":")
_passes_left = int(_count) if _count.isdigit() else 1


def _reached(name: str) -> None:
    """Kill this process, without any cleanup, if this is the requested point."""
    global _passes_left
    if name != _name:
        return
    _passes_left -= 1
    if _passes_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


if _name:
    faultpoint.listener = _reached
