"""Texts that every store can keep: what SQLite or PostgreSQL would refuse is kept as JSON behind a mark.

A key or unit may hold NUL or lone surrogates, because some system has such rows. The stored form has no
control characters but a leading mark, so that lines joined by them read in one way only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any

MARK = "\x1a"
_AWKWARD = re.compile("[\x00-\x1f\ud800-\udfff]")


def storable(*columns: Sequence[str]) -> list[Sequence[str]]:
    """Columns of texts that can be stored: the same columns unless some text is awkward."""
    # One look at all texts together, because almost always there is nothing to do.
    return [texts if "".join(texts).isprintable() else list(map(_kept, texts)) for texts in columns]


def original(rows: Sequence[tuple[Any, ...]], *columns: int) -> Sequence[tuple[Any, ...]]:
    """The rows as they were before they were made storable."""
    if "".join(filter(None, chain.from_iterable(map(itemgetter(*columns), rows)))).isprintable():
        return rows
    return [tuple(_restored(value) for value in row) for row in rows]


def _kept(text: str) -> str:
    return MARK + json.dumps(text) if _AWKWARD.search(text) else text


def _restored(value: Any) -> Any:
    return json.loads(value[1:]) if isinstance(value, str) and value.startswith(MARK) else value


def stored_text(text: str) -> str:
    """One text as it is stored, to look for it."""
    return _kept(text)
