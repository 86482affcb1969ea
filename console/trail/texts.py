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


def storable(rows: Sequence[tuple[Any, ...]], *columns: int) -> Sequence[tuple[Any, ...]]:
    """Rows whose texts in these columns can be stored: the same rows unless some text is awkward."""
    if _all_plain(rows, columns):
        return rows
    return [tuple(_kept(value) for value in row) for row in rows]


def original(rows: Sequence[tuple[Any, ...]], *columns: int) -> Sequence[tuple[Any, ...]]:
    """The rows as they were before they were made storable."""
    if _all_plain(rows, columns):
        return rows
    return [tuple(_restored(value) for value in row) for row in rows]


def _all_plain(rows: Sequence[tuple[Any, ...]], columns: tuple[int, ...]) -> bool:
    """One look at all texts together, because almost always there is nothing to do."""
    return "".join(filter(None, chain.from_iterable(map(itemgetter(*columns), rows)))).isprintable()


def _kept(value: Any) -> Any:
    return MARK + json.dumps(value) if isinstance(value, str) and _AWKWARD.search(value) else value


def _restored(value: Any) -> Any:
    return json.loads(value[1:]) if isinstance(value, str) and value.startswith(MARK) else value


def stored_text(text: str) -> str:
    """One text as it is stored, to look for it."""
    return str(_kept(text))
