"""Predicts whether and when the workers of an SQLite queue take a task.

Both queues compare the due time with the present time as text: `next_run_at <= '2026-11-10T12:00:00+00:00'`. Text that
their own code writes compares as the times do. Other text does not: `13:00:00+02:00` is taken at 13:00 UTC, two hours
late, and `2026-11-10 23:00` as soon as that day begins in UTC, because a blank sorts before the T.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any

import sqlalchemy as sa

from console.core.item import Window
from console.core.prediction import Prediction
from console.core.text import and_list
from console.sql.layout import Expression
from console.sql.table import StoredRow
from console.sql.times import in_bytes

_TAKEN_AT = "retriage_taken_at"
_FIRST, _LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def predict_task(row: StoredRow, due: str, types: Collection[str] | None = None, *, needs_due: bool) -> Prediction:
    """What the queue's workers do with a task whose status is PENDING. `due` is the name of its due time."""
    if types is not None and row.type not in types:
        return Prediction(False, f"its workers take only {and_list(sorted(types))}")
    if row.due is None:
        return Prediction(False, f"{due} is NULL") if needs_due else Prediction(True)
    at = taken_at(row.due)
    return Prediction(False, f"{due} is not a time") if at is None else Prediction(True, at=Window.at(at))


@lru_cache(maxsize=4096)
def taken_at(due: Any) -> datetime | None:
    """The first moment at which the stored due time is not after the present time, as text; None if it never is."""
    if isinstance(due, int | float):
        return _FIRST  # a number sorts before any text
    if not isinstance(due, str):
        return None  # a blob sorts after any text
    if _is_usual(due) and (at := _time(due)) is not None:
        return at
    # The text of a moment grows with the moment.
    early, late = 0, (_LAST - _FIRST) // _MICROSECOND
    if (_FIRST + late * _MICROSECOND).isoformat() < due:
        return None
    while early < late:
        middle = (early + late) // 2
        if (_FIRST + middle * _MICROSECOND).isoformat() < due:
            early = middle + 1
        else:
            late = middle
    return _FIRST + early * _MICROSECOND


def _is_usual(due: str) -> bool:
    """Whether the text has the format that the queues write, in which texts compare as times do."""
    return due.isascii() and due[10:11] == "T" and due[16:17] == ":" and due[19:20] in "+." and due.endswith("+00:00")


def _time(text: str) -> datetime | None:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return at if at.tzinfo is UTC and len(text) <= len("2026-11-10T12:00:00.000000+00:00") else None


def taken_at_functions() -> dict[str, Callable[[Any], str | None]]:
    """The SQL function that `taken_at_column` needs."""

    def text_of(due: bytes | None) -> str | None:
        at = None if due is None else taken_at(due.decode("utf-8", "surrogateescape"))
        return None if at is None else at.isoformat()

    return {_TAKEN_AT: text_of}


def taken_at_column(due: Expression) -> Expression:
    """`taken_at` of a column, as ISO text."""
    usual = due.op("GLOB", is_comparison=True)(sa.literal_column("'[0-9]???-??-??T??:??:??*+00:00'"))
    return sa.case((usual, due), else_=getattr(sa.func, _TAKEN_AT)(in_bytes(due)))
