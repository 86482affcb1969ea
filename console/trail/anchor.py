"""Anchors: the end of the chain, written to a second place, so that a cut-off end of the trail is found.

The place is a file (each line `seq hash time`) or `syslog`. It should be out of reach for people who can write the
trail: another machine's log, or an append-only file.
"""

from __future__ import annotations

import os
import re
import syslog
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from console.core.faults import UsageFault
from console.core.paths import expanded
from console.trail.record import Head, moment, stamp

SYSLOG = "syslog"
_TAIL = 64 * 1024
"""How much of the end of a file is searched for its last anchor."""
_LINE = re.compile(r"(?:.*\bretriage-anchor: )?(\d+) ([0-9a-f]{64}) (\d{4}-\d\d-\d\dT[0-9:.]+Z)")


class AnchorLine(NamedTuple):
    """The last record of the chain at that time."""

    seq: int
    hash: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.seq} {self.hash} {stamp(self.at)}"


class Anchor:
    """The place that anchors are written to."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._path = expanded(place)
        self.kind = SYSLOG if place == SYSLOG else "file"

    def write(self, line: AnchorLine) -> str | None:
        """Write the line durably. Returns why that failed, or None."""
        if self.kind == SYSLOG:
            syslog.syslog(syslog.LOG_NOTICE | syslog.LOG_AUTH, f"retriage-anchor: {line}")
            return None
        try:
            self._append(f"{line}\n".encode())
        except OSError as error:
            return error.strerror or type(error).__name__
        return None

    def last(self) -> Head | None:
        """The last anchor that can be read back; None if there is none, or it cannot be read (syslog, rights)."""
        if self.kind == SYSLOG:
            return None
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _TAIL))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return None
        found = (match for line in reversed(lines) if (match := _LINE.fullmatch(line.strip())))
        return next((Head(int(match[1]), match[2]) for match in found), None)

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, line) != len(line):
                raise OSError(0, "the line was cut short")
            os.fsync(file)
        finally:
            os.close(file)


def read_anchors(path: str | Path, *, missing_ok: bool = False) -> Sequence[AnchorLine]:
    """The anchors in a file or in a log written by syslog. Other lines are ignored.

    Raises `UsageFault` when the file cannot be read, or has lines but no anchor.
    """
    try:
        text = expanded(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return []
        raise UsageFault(f"Cannot read the anchors: {error.strerror}", where=str(path)) from None
    lines = [line for line in text.splitlines() if line.strip()]
    found = [match for line in lines if (match := _LINE.fullmatch(line.strip()))]
    if lines and not found:
        raise UsageFault("No anchor in this file", where=str(path))
    return [AnchorLine(int(match[1]), match[2], moment(match[3])) for match in found]


def announced_anchors(records: Iterable[tuple[int, Mapping[str, Any]]]) -> list[int]:
    """The anchor records whose line was written to a file, according to the trail."""
    written: dict[int, None] = {}
    for seq, body in records:
        if body.get("failed"):
            written.pop(body["seq"], None)
        elif body.get("place") == "file":
            written[seq] = None
    return list(written)
