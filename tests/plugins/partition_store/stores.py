"""Real partition stores for tests: an SQLite state file and a raw sink on disk."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from console.core.backend import Action, Authority, Change, Order
from console.core.item import ItemKey
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Sort
from console.testing import NOON, FrozenClock, Harness, Sample
from plugins.partition_store import PartitionStore
from plugins.partition_store.backend import Options
from plugins.partition_store.engine import Validator
from plugins.partition_store.schema import CONTROL, STATE, STATE_DDL
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition

OWN = PolicyOverride(max_attempts=3)
REQUEUE = Order()
WHO = Authority("ops", "because", "T-1", "o1")
UNCHECKED = STATE_DDL.replace(" CHECK (status IN ('pending', 'success', 'failed'))", "").replace("status TEXT NOT NULL", "status TEXT")
UNTOUCHABLE = ("current_run_id", "record_count", "schema_version", "attempt_count")


def part(day: int = 9, customer: str = "c1") -> Partition:
    return Partition("ads", customer, "spend", f"2026-11-{day:02}")


def run_id(hour: int, day: int = 9) -> str:
    return f"2026-11-{day:02}T{hour:02}:00:00.000Z"


class Store:
    """One store in a folder, opened as a backend when asked."""

    def __init__(self, base: Path, ddl: str = STATE_DDL) -> None:
        self.base = base
        self.raw = base / "raw"
        self.raw.mkdir(parents=True)
        self.path = base / "state.db"
        self.clock = FrozenClock()
        self.sql(ddl, script=True)

    def sql(self, text: str, parameters: Sequence[Any] = (), *, script: bool = False) -> list[Any]:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            if script:
                connection.executescript(text)
                return []
            return connection.execute(text, parameters).fetchall()

    def put(self, partition: Partition, status: str | None = "failed", **given: Any) -> ItemKey:
        row = {
            **partition._asdict(), "status": status, "current_run_id": None, "schema_version": None, "record_count": None,
            "updated_at": (NOON - timedelta(hours=1)).isoformat(), "error_message": "COUNT_MISMATCH: 1" if status == "failed" else None,
            "attempt_count": 1, **given,
        }
        self.sql(f"INSERT INTO partition_state ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})", list(row.values()))
        return ItemKey("parts", tuple(partition))

    def row(self, partition: Partition) -> dict[str, Any] | None:
        found = self.sql(f"SELECT {', '.join(STATE)} FROM partition_state WHERE source=? AND customer_id=? AND query_name=? AND logical_date=?", partition)
        return dict(zip(STATE, found[0], strict=True)) if found else None

    def has_control(self) -> bool:
        return bool(self.sql("SELECT 1 FROM sqlite_master WHERE name = ?", (CONTROL,)))

    def folder(self, partition: Partition, run: str) -> Path:
        return self.raw.joinpath(*partition.segments, f"run_id={run}")

    def run(self, partition: Partition, run: str, *, records: int = 2, counted: int | None = None, seal: bool = True) -> None:
        folder = self.folder(partition, run)
        folder.mkdir(parents=True)
        (folder / PAYLOAD).write_text("".join(json.dumps({"n": n}) + "\n" for n in range(records)))
        if seal:
            told = {**partition._asdict(), "run_id": run, "record_count": records if counted is None else counted, "schema_version": "v1"}
            (folder / METADATA).write_text(json.dumps(told))

    def open(self, policy: PolicyOverride = OWN, *, read_only: bool = False, **given: Any) -> PartitionStore:
        options = Options(url=f"sqlite:///{self.path}", **{"raw_sink": str(self.raw), "validator": True, **given})
        return PartitionStore.open("parts", options, policy, read_only=read_only, deadline=timedelta(seconds=30))

    def validator(self, backend: PartitionStore, **given: Any) -> Validator:
        return Validator(backend.database, backend.sink, self.clock, **given)

    def validate(self, backend: PartitionStore, **given: Any) -> int:
        self.clock.tick()
        return self.validator(backend, **given).cycle(lambda _: None, Never())


def tree_hash(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path.lstat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def drafts(backend: PartitionStore, keys: Sequence[ItemKey], order: Order = REQUEUE, now: datetime = NOON) -> list[Any]:
    return [draft for batch in backend.drafts(keys, Sort(), order, now, Never()) for draft in batch]


def blocked(backend: PartitionStore, key: ItemKey, order: Order = REQUEUE) -> str | None:
    (draft,) = drafts(backend, [key], order)
    return draft.blocked


def act(backend: PartitionStore, key: ItemKey, order: Order = REQUEUE, now: datetime = NOON) -> Change:
    """Through the same steps as core: draft, after-image, swap. Returns the change, for undo."""
    (draft,) = drafts(backend, [key], order, now)
    assert draft.blocked is None, draft.blocked
    change = Change(draft.unit, (key,), tuple(json.loads(draft.before)), ())
    change = change._replace(after=backend.after(change, order, now, now))
    (outcome,) = backend.swap([change], order, WHO)
    assert outcome.kind == "changed", outcome
    assert list(backend.images([change])) == [change.after]
    return change


def undo(backend: PartitionStore, change: Change) -> None:
    back = change._replace(before=change.after, after=change.before)
    assert [o.kind for o in backend.swap([back], Order(Action.UNDO), WHO)] == ["changed"]


def harness(base: Path, policy: PolicyOverride = OWN, *, control: bool = False, read_only: bool = False) -> Harness:
    store = Store(base, UNCHECKED)
    if control:
        key = store.put(Partition("zz", "z", "z", "2020-01-01"))
        store.run(Partition("zz", "z", "z", "2020-01-01"), run_id(1))
        act(store.open(PolicyOverride()), key, Order(Action.PAUSE))
        store.sql("DELETE FROM partition_state")

    def put(samples: Sequence[Sample]) -> int:
        for n, sample in enumerate(samples):
            day = (NOON.date() - timedelta(days=n)).isoformat()
            store.put(
                Partition("ads", _text(sample.id), _text(sample.type or ""), day), _text(sample.status), updated_at=_stored(sample.updated),
                error_message=_text(sample.error), attempt_count=_text(sample.attempts),
            )
        return len(samples)

    def fingerprint() -> object:
        return tree_hash(store.base)

    return Harness(store.open(policy, read_only=read_only), put, ("pending", "failed", "success"), FrozenClock(), lambda _: (), fingerprint)


def _text(value: Any) -> Any:
    """What SQLite could not be given as text is bent into something like it."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _stored(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else _text(value)
