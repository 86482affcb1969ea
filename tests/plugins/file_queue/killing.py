"""Kills a child process with SIGKILL at a chosen system call, so that it cleans up nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

WRITING = ("open", "write", "fsync", "rename", "link", "unlink", "fchmod", "fchown")


class DyingOs:
    """Replaces the `os` module and kills the process before or after the n-th call that could write."""

    def __init__(self, die_at: int, *, before: bool) -> None:
        self._left = die_at
        self._before = before

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in WRITING:
            return real

        def call(*args: Any, **kwargs: Any) -> Any:
            self._left -= 1
            if self._left == 0 and self._before:
                os.kill(os.getpid(), signal.SIGKILL)
            result = real(*args, **kwargs)
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call


def in_dying_child(work: Callable[[], object], module: Any, die_at: int, *, before: bool) -> bool:
    """Run `work` in a child process that dies at that call of `module.os`; returns whether it died."""
    child = os.fork()
    if child == 0:
        module.os = DyingOs(die_at, before=before)
        try:
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)
