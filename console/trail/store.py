"""The book, opened."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

import sqlalchemy as sa

from console.core.audit import Verification
from console.core.faults import ConfigFault, UsageFault
from console.core.ports import Book, Clock
from console.sql.sqlite import sqlite_path
from console.trail.anchor import Anchor, AnchorLine, first_anchored, read_anchors
from console.trail.chain import Chain
from console.trail.export import export_csv, export_jsonl
from console.trail.overrides import Overrides
from console.trail.record import Kind
from console.trail.sqlite_storage import SqliteStorage
from console.trail.storage import Storage, select
from console.trail.verify import verify

if TYPE_CHECKING:
    from console.trail.postgres_storage import PostgresStorage

_ANCHOR_RECORDS = "SELECT seq, body FROM record WHERE kind = ? ORDER BY seq"


class TrailBook(Overrides):
    """`console.core.ports.Book` over a database, and what auditors ask of it."""

    def __init__(self, storage: Storage, clock: Clock, anchor: Anchor | None = None) -> None:
        self._storage = storage
        self._clock = clock
        self._chain = Chain()
        self._anchor = anchor
        self.warnings: list[str] = []
        """What went wrong without stopping anything: anchors that could not be written."""

    @property
    def place(self) -> str:
        """Where the trail is, safe to show."""
        return self._storage.place

    def refuse(self, body: Mapping[str, Any], now: datetime) -> None:
        self._append(Kind.REFUSAL, body, now)

    def session(self, body: Mapping[str, Any], now: datetime) -> None:
        """Record that somebody opened the console."""
        self._append(Kind.SESSION, body, now)

    def verify(self, anchors: Iterable[AnchorLine] = ()) -> Verification:
        """Whether the whole trail is what was written, as far as these anchors tell also at its end."""
        return verify(self._storage, anchors)

    def verified(self, anchors: str | None = None) -> Verification:
        """The same with the anchors of a file; a trail that was anchored in one is not proved by an empty one."""
        if not anchors:
            return self.verify()
        configured = self._anchor is not None and self._anchor.place == anchors
        read = partial(read_anchors, anchors, missing_ok=configured)
        lines = read()
        found = self.verify(lines)
        if lines or not found.ok:
            return found
        seq = self._first_anchored()
        if seq is None or read():  # the first one may have been written meanwhile
            return found
        what = "its anchor is gone, or its process was killed before writing it: the file is missing or empty"
        return Verification(False, found.records, seq, what)

    def _first_anchored(self) -> int | None:
        rows = select(self._storage, _ANCHOR_RECORDS, (Kind.ANCHOR.value,))
        return first_anchored((seq, json.loads(body)) for seq, body in rows)

    def export(self, out: TextIO, form: str, *, items: bool = False) -> int:
        match form:
            case "jsonl":
                return export_jsonl(self, out, items=items)
            case "csv":
                return export_csv(self, out, items=items)
        raise UsageFault(f"the trail cannot be exported as {form}", fix="Use jsonl or csv.")

    def close(self) -> None:
        self._storage.close()


def open_book(url: str, *, read_only: bool, anchor: str | None, clock: Clock) -> TrailBook:
    """The trail at this URL. Nothing is read or created before it is used."""
    parsed = sa.make_url(url)
    storage: Storage
    match parsed.get_backend_name():
        case "sqlite":
            storage = SqliteStorage(sqlite_path(url), read_only=read_only)
        case "postgresql":
            storage = _postgres(url, read_only)
        case other:
            raise ConfigFault(f"a trail cannot be kept in {other}", fix="Use sqlite:///… or postgresql://…")
    return TrailBook(storage, clock, Anchor(anchor) if anchor else None)


def _postgres(url: str, read_only: bool) -> PostgresStorage:
    try:
        from console.trail.postgres_storage import PostgresStorage
    except ModuleNotFoundError:
        raise ConfigFault("the PostgreSQL driver is missing", fix="Install retriage[postgres].") from None
    return PostgresStorage(url, read_only=read_only)


def _is_a_book(book: TrailBook) -> Book:
    """For the type checker: the port is implemented in full."""
    return book
