"""Anchors: the end of the chain, written to a second place, so that a cut-off end of the trail is found.

The place is a file (each line `seq hash time`) or `syslog`. It should be out of reach for people who can write the
trail: another machine's log, or an append-only file.
"""

from __future__ import annotations

import os
import re
import syslog
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from console.core.faults import UsageFault
from console.core.paths import expanded
from console.trail.record import Head, moment, stamp

SYSLOG = "syslog"
_APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LINE = re.compile(r"(?:.*\bretriage-anchor: )?([0-9]{1,18}) ([0-9a-f]{64}) ([0-9]{4}-[0-9-]{5}T[0-9:.]+Z)")


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
        """The anchor of the latest record; None if there is none, or it cannot be read back (syslog, rights).

        All lines are read, and the first of that record counts: somebody may have added to the file.
        """
        if self.kind == SYSLOG:
            return None
        last: Head | None = None
        try:
            if not self._path.is_file():  # a pipe would be waited for, and a device may never end
                return None
            with self._path.open(encoding="utf-8", errors="replace") as file:
                for line in file:
                    if (found := _anchor_in(line)) is not None and (last is None or found.seq > last.seq):
                        last = Head(found.seq, found.hash)
        except OSError:
            return None
        return last

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, _APPEND, 0o600)
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
        if missing_ok and expanded(path).exists() and not expanded(path).is_file():
            raise UsageFault("Cannot read the anchors: not a regular file", where=str(path))
        text = expanded(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return []
        raise UsageFault(f"Cannot read the anchors: {error.strerror}", where=str(path)) from None
    lines = [line for line in text.splitlines() if line.strip()]
    found = [anchor for line in lines if (anchor := _anchor_in(line)) is not None]
    if lines and not found:
        raise UsageFault("No anchor in this file", where=str(path))
    return found


def _anchor_in(line: str) -> AnchorLine | None:
    """The anchor in a line of a file or log; None for any other line."""
    if (match := _LINE.fullmatch(line.strip())) is None:
        return None
    with suppress(ValueError):  # a time that there is not
        return AnchorLine(int(match[1]), match[2], moment(match[3]))
    return None


def announced_anchors(records: Iterable[tuple[int, Mapping[str, Any]]]) -> list[int]:
    """The anchor records whose line was written to a file, according to the trail."""
    written: dict[int, None] = {}
    for seq, body in records:
        if body.get("failed"):
            written.pop(body["seq"], None)
        elif body.get("place") == "file":
            written[seq] = None
    return list(written)
