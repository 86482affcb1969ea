"""Checks a table of the trail against the records: each row belongs to a record, and is what the records imply."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from console.trail.record import BadRecord, Kind, a_number
from console.trail.storage import Row, Storage, select


class TableCheck(ABC):
    """Follows the records page by page. What the table shows of records after `end` must be in those."""

    TABLE: ClassVar[str]
    ROWS: ClassVar[str]
    """Selects the rows of the records after one and up to another. The first column is the record."""
    WITHOUT_RECORD: ClassVar[str]
    """Selects the first record that a row names and that is not of the kind of `MADE_BY`."""
    MADE_BY: ClassVar[Kind]
    """The kind of the records that add a row."""
    KINDS: ClassVar[frozenset[Kind]]
    """The records that say something about the table."""

    def __init__(self, storage: Storage, end: int) -> None:
        self._storage = storage
        self._end = end

    def check_page(self, records: Sequence[Row]) -> None:
        """Compare the next records; their hashes are verified already."""
        relevant = [(seq, Kind(kind), json.loads(body)) for seq, kind, _, body, _, _ in records if kind in self.KINDS]
        stored: dict[int, list[Row]] = {}
        for seq, *row in select(self._storage, self.ROWS, (records[0][0] - 1, records[-1][0])):
            stored.setdefault(seq, []).append(tuple(row))
        for seq, kind, body in relevant:
            try:
                self._follow(seq, kind, body, stored)
            except (ValueError, TypeError, KeyError, AttributeError):
                raise BadRecord(seq, "cannot be read") from None
        for seq in stored:
            raise self._without_record(seq)

    @abstractmethod
    def _follow(self, seq: int, kind: Kind, body: dict[str, Any], stored: dict[int, list[Row]]) -> None:
        """Compare one record with the table, and take its rows out of `stored`."""

    @abstractmethod
    def check_end(self) -> None:
        """Compare what only the last record decides."""

    def require_records(self) -> None:
        """Raises `BadRecord` for a row whose record does not exist."""
        for (seq,) in select(self._storage, self.WITHOUT_RECORD, (self.MADE_BY.value,)):
            if seq is not None:
                raise self._without_record(max(a_number(seq), 1))

    def _without_record(self, seq: int) -> BadRecord:
        return BadRecord(seq, f"table {self.TABLE} has a row without a record")
