"""Stored values as the console reads them, whatever a loosely typed database holds."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import date
from typing import Any
from uuid import UUID

from console.sql.statement import is_unicode

_LEADING_INTEGER = re.compile(r"[ \t-\r]*([+-]?[0-9]+)")
_LARGEST = 2**63 - 1


def whole_number(raw: Any) -> int:
    """What SQLite's CAST AS INTEGER makes of a value, below zero read as zero."""
    if isinstance(raw, int):
        return max(raw, 0)
    if isinstance(raw, float):
        return _LARGEST if raw >= _LARGEST else int(max(raw, 0.0)) if raw == raw else 0
    if isinstance(raw, bytes):
        raw = raw.decode("utf-8", "replace")
    if isinstance(raw, str) and (found := _LEADING_INTEGER.match(raw)):
        return min(max(int(found[1][:400]), 0), _LARGEST)
    return 0


def text(raw: Any) -> str:
    """Any stored value as text."""
    if isinstance(raw, str):
        return raw
    if raw is None:
        return ""
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else str(raw)


def plain(value: Any) -> Any:
    """A stored value as JSON can hold it, so that an image compares with itself after a journey through text."""
    if isinstance(value, date):
        return value.isoformat()
    return str(value) if isinstance(value, UUID) else value


def storable(image: Sequence[Any]) -> bool:
    """Whether an image can be kept as JSON and come back the same: no bytes, no text that is not Unicode."""
    for value in image:
        if isinstance(value, str):
            if not is_unicode(value):
                return False
        elif value is not None and not isinstance(value, int | float):
            return False
    return True


def castable(kind: str) -> str:
    """A column's type as PostgreSQL tells it, to cast to: `character` and `bit` alone hold one letter, one bit."""
    element = kind.removesuffix("[]")
    return {"character": "bpchar", "bit": "varbit"}.get(element, element) + kind[len(element) :]
