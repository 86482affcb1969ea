"""Verifying: the whole chain, every item outcome, the working tables and the anchors; what is wrong is named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from typing import Any

from console.core.audit import Verification
from console.trail.anchor import AnchorLine
from console.trail.record import AT_LENGTH, CONCLUDING, GENESIS, KINDS, BadRecord, ItemsDigest, a_number, link
from console.trail.storage import Row, Storage, select
from console.trail.working import Working

_BATCH = 5_000
_RECORDS = "SELECT seq, kind, at, body, prev, hash FROM record WHERE seq > ? AND seq <= ? ORDER BY seq LIMIT ?"
_ITEMS = """SELECT seq, ordinal, key, outcome, detail FROM item_outcome
    WHERE (seq, ordinal) > (?, ?) AND seq <= ? ORDER BY seq, ordinal LIMIT ?"""
_BELOW_THE_FIRST = (
    "SELECT 1 FROM record WHERE seq < 1 LIMIT 1",
    "SELECT 1 FROM item_outcome WHERE seq < 1 LIMIT 1",
)
_END = "SELECT max(seq) FROM record"
_BEYOND = "SELECT min(seq) FROM item_outcome WHERE seq > (SELECT coalesce(max(seq), 0) FROM record)"
_HIGHEST = 2**63 - 1


def verify(storage: Storage, anchors: Iterable[AnchorLine] = ()) -> Verification:
    """Reads in batches, so it takes little memory however long the trail is."""
    walk = _Walk(storage, anchors)
    try:
        walk.records()
    except BadRecord as bad:
        return Verification(False, walk.seen, bad.seq, bad.what)
    return Verification(True, walk.seen)


class _Walk:
    """Along the records, with the item outcomes, the working tables and the anchors in step."""

    def __init__(self, storage: Storage, anchors: Iterable[AnchorLine]) -> None:
        self._storage = storage
        self._anchors: dict[int, str] = {}
        for anchor in anchors:
            if self._anchors.setdefault(anchor.seq, anchor.hash) != anchor.hash:
                self._anchors[anchor.seq] = "contradicting anchors"
        self._end = _first(storage, _END) or 0
        """Where the walk ends: a record is committed with its outcomes, and others are added meanwhile."""
        self._items = _Items(_pages(storage, _ITEMS, 2, self._end))
        self._working = Working(storage, self._end)
        self.seen = 0

    def records(self) -> None:
        if any(select(self._storage, sql) for sql in _BELOW_THE_FIRST):
            raise BadRecord(1, "is not the first: something was put before it")
        prev = GENESIS
        for rows in _pages(self._storage, _RECORDS, 1, self._end):
            for row in rows:
                prev = self._record(prev, row)
            self._working.page(rows)
        orphan = self._items.next_seq
        if orphan is None:
            orphan = _first(self._storage, _BEYOND)
        if orphan is not None:
            raise BadRecord(a_number(orphan), "item outcomes that belong to no record")
        if lost := [seq for seq in self._anchors if seq > self.seen]:
            raise BadRecord(self.seen + 1, f"the tail was cut: the anchors know record {max(lost)}")
        self._working.end()

    def _record(self, prev: str, row: Row) -> str:
        seq, kind, at, body, before, digest = row
        expected = self.seen + 1
        if seq != expected:
            raise BadRecord(expected, f"is missing; the next one is {seq}")
        if before != prev:
            raise BadRecord(seq, "does not follow the record before it")
        # With a known kind and a time of the one length, the hashed text reads in one way only.
        if kind not in KINDS or len(str(at)) != AT_LENGTH or link(before, seq, kind, at, body) != digest:
            raise BadRecord(seq, "was edited: its hash does not fit")
        if seq in self._anchors and self._anchors[seq] != digest:
            raise BadRecord(seq, "was rewritten: an anchor knows another hash")
        if kind in CONCLUDING:
            self._outcomes(seq, json.loads(body))
        elif (next_seq := self._items.next_seq) is not None and next_seq <= seq:
            raise BadRecord(min(seq, next_seq), "item outcomes that belong to no record")
        self.seen = seq
        return str(digest)

    def _outcomes(self, seq: int, body: dict[str, Any]) -> None:
        if (next_seq := self._items.next_seq) is not None and next_seq < seq:
            raise BadRecord(next_seq, "item outcomes that belong to no record")
        count, digest = self._items.take(seq)
        expected = body.get("items_count", 0)
        if count < expected:
            raise BadRecord(seq, f"{expected - count} of its item outcomes are missing")
        if count > expected:
            raise BadRecord(seq, f"has {count - expected} item outcomes too many")
        if digest != body.get("items_digest"):
            raise BadRecord(seq, "its item outcomes were edited")


class _Items:
    """The item outcomes in order, digested record by record."""

    def __init__(self, pages: Iterator[list[Row]]) -> None:
        self._runs = (run for page in pages for run in _runs(page))
        self._ahead = next(self._runs, None)

    @property
    def next_seq(self) -> int | None:
        """The record that the next outcomes claim to belong to."""
        return None if self._ahead is None else a_number(self._ahead[0])

    def take(self, seq: int) -> tuple[int, str]:
        """How many outcomes this record has, and their digest."""
        digest = ItemsDigest()
        while self._ahead is not None and self._ahead[0] == seq:
            digest.add(self._ahead[1])
            self._ahead = next(self._runs, None)
        return digest.count, digest.hexdigest()


def _runs(page: list[Row]) -> Iterator[tuple[int, Iterable[Row]]]:
    """The rows of a page by record; a page from the middle of a large override is one run."""
    if page[0][0] == page[-1][0]:
        yield page[0][0], page
    else:
        for seq, rows in groupby(page, itemgetter(0)):
            yield seq, list(rows)


def _first(storage: Storage, sql: str) -> Any:
    """The one value that a statement asks for; None where there is no trail yet."""
    return next((row[0] for row in select(storage, sql)), None)


def _pages(storage: Storage, sql: str, keys: int, end: int) -> Iterator[list[Row]]:
    """The rows of a table by its key up to this record, in batches."""
    last: Row = (0, _HIGHEST)[:keys]
    while page := select(storage, sql, (*last, end, _BATCH)):
        yield page
        if len(page) < _BATCH:
            return
        last = page[-1][:keys]
