"""Memory for threads: glibc gives each a heap of its own, and what one has freed the others cannot have.

A console that is open for days would fill every one of them to its own highest mark. Only one thread of Python runs
at a time, so a few heaps serve them all.
"""

from __future__ import annotations

from contextlib import suppress

_ARENA_MAX = -8
"""As malloc.h calls it."""
_HEAPS = 2


def share() -> None:
    """From now on no thread gets another heap; nothing happens where the allocator is not glibc's."""
    from ctypes import CDLL

    with suppress(OSError, AttributeError):
        CDLL(None).mallopt(_ARENA_MAX, _HEAPS)
