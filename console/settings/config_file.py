"""Reads the bytes of a config file, and refuses a file that others could have changed."""

from __future__ import annotations

import os
import shlex
import stat
from dataclasses import dataclass, field
from pathlib import Path

from console.config_peek import MAX_BYTES
from console.core.faults import ConfigFault

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True, slots=True)
class Source:
    """The bytes of a config file that only its owner can change."""

    content: bytes = field(repr=False)
    others_read: bool


def read_config(path: Path, if_missing: str) -> Source:
    """The file's bytes; raises a ConfigFault when others can write it. `if_missing` is advice for a missing file."""
    try:
        # Non-blocking, so that a named pipe is refused below instead of waited for.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise _fault(path, "No such file", if_missing) from None
    except (OSError, ValueError) as error:
        raise _fault(path, f"Cannot open the file: {getattr(error, 'strerror', None) or error}") from None
    try:
        status = os.fstat(handle)
        _require_trusted(path, status)
        with os.fdopen(handle, "rb", closefd=False) as file:
            content = file.read(MAX_BYTES + 1)
    finally:
        os.close(handle)
    if len(content) > MAX_BYTES:
        raise _fault(path, f"The file is larger than {MAX_BYTES // 1024} KB", "Is this the right file?")
    return Source(content, bool(status.st_mode & _OTHERS_READ))


def _require_trusted(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise _fault(path, "Not a regular file")
    if status.st_uid not in (0, os.geteuid()):
        raise _fault(
            path,
            "The file belongs to another user, who could change what is done in your name",
            f"Make your own copy, or run: {command('chown', str(os.geteuid()), path)}",
        )
    if status.st_mode & _OTHERS_WRITE:
        raise _fault(path, "Others can write to this file", f"Run: {command('chmod', 'go-w', path)}")


def command(name: str, change: str, path: Path) -> str:
    """A shell command to copy."""
    return f"{name} {change} {shlex.quote(str(path))}"


def _fault(path: Path, detail: str, fix: str = "") -> ConfigFault:
    return ConfigFault(detail, where=str(path), fix=fix)
