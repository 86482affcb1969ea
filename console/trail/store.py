"""The trail in a database: `TrailStore`, and `open_trail`, which opens one from its URL."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from console.core.faults import ConfigFault, UsageFault
from console.core.ports import Clock, Trail, Verification
from console.sql.database import parse_url
from console.sql.sqlite import sqlite_path
from console.trail.anchor import Anchor, AnchorLine, announced_anchors, read_anchors
from console.trail.export import export
from console.trail.overrides import Overrides
from console.trail.record import Chain, Kind
from console.trail.sqlite_storage import SqliteStorage
from console.trail.storage import Storage, select
from console.trail.verify import verify

if TYPE_CHECKING:
    from console.trail.postgres_storage import PostgresStorage

_ANCHOR_RECORDS = "SELECT seq, body FROM record WHERE kind = ? AND seq <= ? ORDER BY seq"


class TrailStore(Overrides):
    """Implements `console.core.ports.Trail` on a database."""

    def __init__(self, storage: Storage, clock: Clock, anchor: Anchor | None = None) -> None:
        self._storage = storage
        self._clock = clock
        self._chain = Chain(anchor.last) if anchor is not None else Chain()
        self._anchor = anchor
        self._held = {}
        self.warnings: list[str] = []
        """Problems that did not stop anything: anchors that could not be written."""

    @property
    def place(self) -> str:
        """Where the trail is, safe to show."""
        return self._storage.place

    def exposed(self) -> str:
        """Who besides its owner could write this trail, as a clause; empty if nobody."""
        return self._storage.exposed()

    def owning_role(self) -> str:
        return self._storage.owning_role()

    def refuse(self, body: Mapping[str, Any], now: datetime) -> None:
        self._append(Kind.REFUSAL, body, now)

    def change_cause(self, body: Mapping[str, Any], now: datetime) -> None:
        self._append(Kind.CAUSE, body, now)

    def verify(self, anchors: Iterable[AnchorLine] = ()) -> Verification:
        """Whether the whole trail is intact. Anchors show also whether its end is still there."""
        return verify(self._storage, anchors)

    def verified(self, anchors: str | None = None) -> Verification:
        """The same with the anchors of a file. If the trail was anchored there, an empty file is a fault."""
        if not anchors:
            return self.verify()
        configured = self._anchor is not None and self._anchor.place == anchors
        read = partial(read_anchors, anchors, missing_ok=configured)
        found = self.verify(read())
        if not found.ok:
            return found
        rows = select(self._storage, _ANCHOR_RECORDS, (Kind.ANCHOR.value, found.records))
        announced = announced_anchors((seq, json.loads(body)) for seq, body in rows)
        lines = {line.seq for line in read()}  # again: an anchor is written after its record
        missing = tuple(seq for seq in announced if seq not in lines)
        if announced and len(missing) == len(announced):
            what = (
                "its anchor is missing, like all others: the anchor file was deleted, emptied or replaced, or the"
                " process was killed before it wrote the anchor"
            )
            return replace(found, ok=False, first_bad=missing[0], what=what, anchors_missing=missing)
        return replace(found, anchors_missing=missing)

    def export(self, out: TextIO, form: str, *, items: bool = False) -> int:
        match form:
            case "jsonl" | "csv":
                return export(self, out, form, items=items)
        raise UsageFault(f"Unknown export format '{form}'", fix="Use jsonl or csv.")

    def close(self) -> None:
        self._storage.close()


def open_trail(url: str, *, read_only: bool, anchor: str | None, clock: Clock) -> TrailStore:
    """The trail at this URL. Nothing is read or created before its first use."""
    parsed = parse_url(url, "Use sqlite:///… or postgresql://…")
    storage: Storage
    match parsed.get_backend_name():
        case "sqlite":
            storage = SqliteStorage(sqlite_path(url), read_only=read_only)
        case "postgresql":
            storage = _postgres(url, read_only)
        case other:
            raise ConfigFault(f"A trail cannot be stored in {other}", fix="Use sqlite:///… or postgresql://…")
    return TrailStore(storage, clock, Anchor(anchor) if anchor else None)


def _postgres(url: str, read_only: bool) -> PostgresStorage:
    try:
        from console.trail.postgres_storage import PostgresStorage
    except ModuleNotFoundError:
        raise ConfigFault("The PostgreSQL driver is missing", fix="Install retriage[postgres].") from None
    return PostgresStorage(url, read_only=read_only)


def _implements_trail(store: TrailStore) -> Trail:
    """Lets the type checker prove that the protocol is implemented in full."""
    return store
