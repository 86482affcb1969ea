"""Verifies the trail: the whole chain, every item outcome and result, the state tables and the anchors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

from console.core.ports import Verification
from console.trail.anchor import AnchorLine
from console.trail.record import AT_LENGTH, CONCLUDING, GENESIS, KINDS, BadRecord, ItemsDigest, Kind, a_number, link
from console.trail.storage import Row, Storage, select
from console.trail.verify_plans import PlanCheck
from console.trail.verify_proposals import ProposalCheck
from console.trail.verify_state import StateCheck

_BATCH = 5_000
_RECORDS = "SELECT seq, kind, at, body, prev, hash FROM record WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
_PAGE_OF_ITEMS = "WHERE (seq, ordinal) > (?, ?) AND seq <= ? ORDER BY seq, ordinal LIMIT ?"
_AFTER_THE_LAST = "WHERE seq > (SELECT coalesce(max(seq), 0) FROM record)"
_END = "SELECT max(seq) FROM record"
_HIGHEST = 2**63 - 1


class _ItemTable(NamedTuple):
    """A table whose rows belong to records, some to each."""

    name: str
    words: str
    kinds: frozenset[str]
    """The kinds of records that have rows in it."""
    columns: str

    @property
    def page(self) -> str:
        return f"SELECT seq, ordinal, key, {self.columns} FROM {self.name} {_PAGE_OF_ITEMS}"  # noqa: S608  constants

    @property
    def beyond(self) -> str:
        return f"SELECT min(seq) FROM {self.name} {_AFTER_THE_LAST}"  # noqa: S608  constants


_ITEM_TABLES = (
    _ItemTable("item_outcome", "item outcomes", CONCLUDING, "outcome, detail"),
    _ItemTable("item_result", "item results", frozenset({Kind.RESULT.value}), "result, cause"),
)
_BELOW_THE_FIRST = tuple(
    f"SELECT 1 FROM {table} WHERE seq < 1 LIMIT 1"  # noqa: S608  constants
    for table in ("record", *(table.name for table in _ITEM_TABLES))
)


def verify(storage: Storage, anchors: Iterable[AnchorLine] = ()) -> Verification:
    """Whether the trail is intact. Reads in batches, so memory stays small however long the trail is."""
    check = _Check(storage, anchors)
    try:
        check.run()
    except BadRecord as bad:
        return Verification(False, check.seen, bad.seq, bad.what, check.anchored)
    return Verification(True, check.seen, anchors=check.anchored)


class _Check:
    """Reads the records in order, together with their item outcomes, the state tables and the anchors."""

    def __init__(self, storage: Storage, anchors: Iterable[AnchorLine]) -> None:
        self._storage = storage
        self._anchors: dict[int, str] = {}
        for anchor in anchors:
            if self._anchors.setdefault(anchor.seq, anchor.hash) != anchor.hash:
                self._anchors[anchor.seq] = "contradicting anchors"
        self._end = _first(storage, _END) or 0
        """The last record to check. Others may be added meanwhile; each is committed with its outcomes."""
        self._items = [_Items(table, _pages(storage, table.page, 2, self._end)) for table in _ITEM_TABLES]
        self._state = StateCheck(storage, self._end)
        self._plans = PlanCheck(storage, self._end)
        self._proposals = ProposalCheck(storage, self._end)
        self.seen = 0

    @property
    def anchored(self) -> tuple[int, ...]:
        """The records seen so far that an anchor names."""
        return tuple(sorted(seq for seq in self._anchors if seq <= self.seen))

    def run(self) -> None:
        """Raises `BadRecord` for the first record that is not as it was written."""
        if any(select(self._storage, sql) for sql in _BELOW_THE_FIRST):
            raise BadRecord(1, "rows were inserted before it")
        prev = GENESIS
        for rows in _pages(self._storage, _RECORDS, 1, self._end):
            for row in rows:
                prev = self._record(prev, row)
            self._state.check_page(rows)
            self._plans.check_page(rows)
            self._proposals.check_page(rows)
        for items in self._items:
            orphan = items.next_seq
            if orphan is None:
                orphan = _first(self._storage, items.table.beyond)
            if orphan is not None:
                raise items.orphans(a_number(orphan))
        if lost := [seq for seq in self._anchors if seq > self.seen]:
            raise BadRecord(self.seen + 1, f"missing, like all records up to {max(lost)}, which an anchor names")
        self._state.check_end()
        self._plans.check_end()
        self._proposals.check_end()

    def _record(self, prev: str, row: Row) -> str:
        seq, kind, at, body, before, digest = row
        expected = self.seen + 1
        if seq != expected:
            raise BadRecord(expected, f"missing (the next record is {seq})")
        if before != prev:
            raise BadRecord(seq, "does not follow the record before it")
        # The kind must be known and the time must have its fixed length, so that the hashed text is unambiguous.
        if kind not in KINDS or len(str(at)) != AT_LENGTH or link(before, seq, kind, at, body) != digest:
            raise BadRecord(seq, "edited (its hash does not match)")
        if seq in self._anchors and self._anchors[seq] != digest:
            raise BadRecord(seq, "rewritten (an anchor has another hash)")
        for items in self._items:
            if kind in items.table.kinds:
                items.check(seq, json.loads(body))
            elif (next_seq := items.next_seq) is not None and next_seq <= seq:
                raise items.orphans(min(seq, next_seq))
        self.seen = seq
        return str(digest)


class _Items:
    """The rows of one table in order, with a digest for each record."""

    def __init__(self, table: _ItemTable, pages: Iterator[list[Row]]) -> None:
        self.table = table
        self._runs = (run for page in pages for run in _runs(page))
        self._next = next(self._runs, None)

    @property
    def next_seq(self) -> int | None:
        """The record of the next rows."""
        return None if self._next is None else a_number(self._next[0])

    def orphans(self, seq: int) -> BadRecord:
        return BadRecord(seq, f"{self.table.words} without a record")

    def check(self, seq: int, body: dict[str, Any]) -> None:
        """Compare the rows of a record with what it says about them."""
        if (next_seq := self.next_seq) is not None and next_seq < seq:
            raise self.orphans(next_seq)
        count, digest = self._take(seq)
        expected = body.get("items_count", 0)
        if count < expected:
            raise BadRecord(seq, f"{expected - count} of its {self.table.words} are missing")
        if count > expected:
            raise BadRecord(seq, f"{count - expected} {self.table.words} too many")
        if digest != body.get("items_digest"):
            raise BadRecord(seq, f"its {self.table.words} were edited")

    def _take(self, seq: int) -> tuple[int, str]:
        """How many rows this record has, and their digest."""
        digest = ItemsDigest()
        while self._next is not None and self._next[0] == seq:
            digest.add(self._next[1])
            self._next = next(self._runs, None)
        return digest.count, digest.hexdigest()


def _runs(page: list[Row]) -> Iterator[tuple[int, Iterable[Row]]]:
    """The rows of a page by record. Rows in the middle of a large override are all of one record."""
    if page[0][0] == page[-1][0]:
        yield page[0][0], page
    else:
        for seq, rows in groupby(page, itemgetter(0)):
            yield seq, list(rows)


def _first(storage: Storage, sql: str) -> Any:
    """The single value of a statement; None where there is no trail yet."""
    return next((row[0] for row in select(storage, sql)), None)


def _pages(storage: Storage, sql: str, keys: int, end: int) -> Iterator[list[Row]]:
    """The rows of a table by its key up to this record, in batches."""
    last: Row = (0, _HIGHEST)[:keys]
    while page := select(storage, sql, (*last, end, _BATCH)):
        yield page
        if len(page) < _BATCH:
            return
        last = page[-1][:keys]
