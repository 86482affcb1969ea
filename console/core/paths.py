"""Paths as operators write them."""

from __future__ import annotations

from pathlib import Path

from console.core.faults import Fault, UsageFault


def expanded(text: str | Path, fault: type[Fault] = UsageFault, where: str = "") -> Path:
    """The path with `~` and `~user` replaced by the home folder; the fault when there is none."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise fault(f"{text}: there is no such home folder", where=where, fix="Write the whole path.") from None
