"""Paths that people write in options and config files."""

from __future__ import annotations

from pathlib import Path

from console.core.faults import Fault, UsageFault


def expanded(text: str | Path, fault: type[Fault] = UsageFault, where: str = "") -> Path:
    """The path with `~` and `~user` replaced by the home folder. Raises `fault` when there is no such folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise fault(f"No such home folder: {text}", where=where, fix="Write the whole path.") from None
