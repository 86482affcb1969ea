"""Anchors: where the chain stood, written to a second place, so that cutting its tail is found.

A place is a file (each line `seq hash time`) or `syslog`. Whoever can rewrite the trail should not be able
to rewrite that place: another machine's log, an append-only file.
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
from console.trail.record import moment, stamp

SYSLOG = "syslog"
_LINE = re.compile(r"(?:.*\bretriage-anchor: )?(\d+) ([0-9a-f]{64}) (\d{4}-\d\d-\d\dT[0-9:.]+Z)")


class AnchorLine(NamedTuple):
    """The chain ended with this record then."""

    seq: int
    hash: str
    at: datetime

    def __str__(self) -> str:
        return f"{self.seq} {self.hash} {stamp(self.at)}"


class Anchor:
    """The second place."""

    def __init__(self, place: str) -> None:
        self.place = place
        self._path = expanded(place)
        self.kind = SYSLOG if place == SYSLOG else "file"

    def drop(self, line: AnchorLine) -> str | None:
        """Write the line and make it last; why that failed, if it did."""
        if self.kind == SYSLOG:
            syslog.syslog(syslog.LOG_NOTICE | syslog.LOG_AUTH, f"retriage-anchor: {line}")
            return None
        try:
            self._append(f"{line}\n".encode())
        except OSError as error:
            return error.strerror or type(error).__name__
        return None

    def _append(self, line: bytes) -> None:
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if os.write(file, line) != len(line):
                raise OSError(0, "the line was cut short")
            os.fsync(file)
        finally:
            os.close(file)


def read_anchors(path: str | Path, *, missing_ok: bool = False) -> Sequence[AnchorLine]:
    """The anchors of a file, or of a log that syslog wrote to; other lines of a log are passed over.

    Raises `UsageFault` when the file cannot be read or holds other things and no anchor at all.
    """
    try:
        text = expanded(path).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        if missing_ok and isinstance(error, FileNotFoundError):
            return []
        raise UsageFault(f"the anchors cannot be read: {error.strerror}", where=str(path)) from None
    lines = [line for line in text.splitlines() if line.strip()]
    found = [match for line in lines if (match := _LINE.fullmatch(line.strip()))]
    if lines and not found:
        raise UsageFault("there is no anchor in this file", where=str(path))
    return [AnchorLine(int(match[1]), match[2], moment(match[3])) for match in found]


def first_anchored(records: Iterable[tuple[int, Mapping[str, Any]]]) -> int | None:
    """The first of these anchor records whose line went to a file, as far as the trail knows."""
    dropped: dict[int, None] = {}
    for seq, body in records:
        if body.get("failed"):
            dropped.pop(body["seq"], None)
        elif body.get("place") == "file":
            dropped[seq] = None
    return next(iter(dropped), None)
