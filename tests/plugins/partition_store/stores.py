"""Real partition stores for tests: their state in SQLite or PostgreSQL, and a raw sink on disk."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg

from console.core.backend import Action, Authority, Change, Operation
from console.core.item import ItemKey
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Sort
from console.testing import NOON, FrozenClock, Harness, Sample
from console.testing import Store as ClientView
from plugins.partition_store import PartitionStore
from plugins.partition_store.actions import PartitionAction
from plugins.partition_store.backend import Options
from plugins.partition_store.engine import Validator
from plugins.partition_store.schema import CONTROL, CONTROLS, KEY, STATE, STATE_DDL
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition
from plugins.partition_store.tables import SAME_KEY
from tests.patience import PATIENCE

OWN = PolicyOverride(max_attempts=3)
REQUEUE = Operation()
WHO = Authority("ops", "because", "T-1", "o1")
UNCHECKED = STATE_DDL.replace(" CHECK (status IN ('pending', 'success', 'failed'))", "").replace("status TEXT NOT NULL", "status TEXT")
UNTOUCHABLE = ("current_run_id", "record_count", "schema_version", "attempt_count")


def part(day: int = 9, customer: str = "c1") -> Partition:
    return Partition("ads", customer, "spend", f"2026-11-{day:02}")


def run_id(hour: int, day: int = 9) -> str:
    return f"2026-11-{day:02}T{hour:02}:00:00.000Z"


class Store:
    """One store, its state in an SQLite file of its folder or in PostgreSQL; opened as a backend when asked."""

    def __init__(self, base: Path, ddl: str = STATE_DDL, url: str = "") -> None:
        self.base = base
        self.raw = base / "raw"
        self.raw.mkdir(parents=True)
        self.url = url or f"sqlite:///{base}/state.db"
        self.is_sqlite = not url
        self.clock = FrozenClock()
        self._opened: list[PartitionStore] = []
        for statement in filter(str.strip, ddl.split(";")):
            self.sql(statement)

    def sql(self, text: str, parameters: Sequence[Any] = (), *, url: str = "", many: bool = False) -> list[Any]:
        url = url or self.url
        if url.startswith("sqlite"):
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as connection:
                connection.execute("PRAGMA synchronous = OFF")
                with connection:
                    run = connection.executemany if many else connection.execute
                    return run(text, parameters).fetchall()
        with psycopg.connect(url, autocommit=True) as server, server.cursor() as cursor:
            if many:
                cursor.executemany(text.replace("?", "%s"), parameters)
                return []
            cursor.execute(text.replace("?", "%s"), list(parameters) or None)
            return [tuple(map(_plain, row)) for row in cursor.fetchall()] if cursor.description else []

    def put(self, partition: Partition, status: str | None = "failed", **given: Any) -> ItemKey:
        return self.put_all([(partition, {"status": status, **given})])[0]

    def put_all(self, rows: Sequence[tuple[Partition, Mapping[str, Any]]]) -> list[ItemKey]:
        """Rows as the pipeline would have written them, an hour ago, after one attempt."""
        full = [
            {
                **partition._asdict(), "current_run_id": None, "schema_version": None, "record_count": None,
                "updated_at": (NOON - timedelta(hours=1)).isoformat(), "attempt_count": 1,
                "error_message": "COUNT_MISMATCH: 1" if given.get("status") == "failed" else None, **given,
            }
            for partition, given in rows
        ]
        names = list(full[0])
        marks = ", ".join("?" * len(names))
        self.sql(
            f"INSERT INTO partition_state ({', '.join(names)}) VALUES ({marks})", [[row[n] for n in names] for row in full], many=True
        )
        return [ItemKey("parts", tuple(partition)) for partition, _ in rows]

    def row(self, partition: Partition) -> dict[str, Any] | None:
        found = self.sql(f"SELECT {', '.join(STATE)} FROM partition_state WHERE {SAME_KEY}", partition)
        return dict(zip(STATE, found[0], strict=True)) if found else None

    def rows(self) -> list[Any]:
        return sorted(self.sql(f"SELECT {', '.join(STATE)} FROM partition_state"), key=str)

    def marks(self, *names: str, url: str = "") -> list[Any]:
        """The control table, these columns of it."""
        return self.sql(f"SELECT {', '.join(names or (*KEY, *CONTROLS))} FROM {CONTROL}", url=url) if self.has_control(url) else []

    def has_control(self, url: str = "") -> bool:
        if (url or self.url).startswith("sqlite"):
            return bool(self.sql("SELECT 1 FROM sqlite_master WHERE name = ?", (CONTROL,), url=url))
        return self.sql("SELECT to_regclass(?)::text", (CONTROL,), url=url) != [(None,)]

    def folder(self, partition: Partition, run: str) -> Path:
        return self.raw.joinpath(*partition.segments, f"run_id={run}")

    def run(self, partition: Partition, run: str, *, records: int = 2, counted: int | None = None, seal: bool = True) -> None:
        folder = self.folder(partition, run)
        folder.mkdir(parents=True)
        (folder / PAYLOAD).write_text("".join(json.dumps({"n": n}) + "\n" for n in range(records)))
        if seal:
            recorded = {**partition._asdict(), "run_id": run, "record_count": records if counted is None else counted, "schema_version": "v1"}
            (folder / METADATA).write_text(json.dumps(recorded))

    def open(self, policy: PolicyOverride = OWN, *, read_only: bool = False, **given: Any) -> PartitionStore:
        options = Options(url=self.url, **{"raw_sink": str(self.raw), "validator": True, **given})
        opened = PartitionStore.open("parts", options, policy, read_only=read_only, deadline=timedelta(seconds=PATIENCE))
        self._opened.append(opened)
        return opened

    def close(self) -> None:
        for backend in self._opened:
            backend.close()

    def validator(self, backend: PartitionStore, **given: Any) -> Validator:
        return Validator(backend.tables, backend.sink, self.clock, **given)

    def validate(self, backend: PartitionStore, **given: Any) -> int:
        self.clock.tick()
        return self.validator(backend, **given).cycle(lambda _: None, Never())


def tree_hash(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else str(path.lstat().st_mtime_ns)
        for path in sorted(root.rglob("*"))
    }


def drafts(backend: PartitionStore, keys: Sequence[ItemKey], operation: Operation = REQUEUE, now: datetime = NOON) -> list[Any]:
    return [draft for batch in backend.drafts(keys, Sort(), operation, now, Never()) for draft in batch]


def skipped(backend: PartitionStore, key: ItemKey, operation: Operation = REQUEUE) -> str | None:
    (draft,) = drafts(backend, [key], operation)
    return None if draft.skipped is None else draft.skipped.text


def act(backend: PartitionStore, key: ItemKey, operation: Operation = REQUEUE, now: datetime = NOON) -> Change:
    """The same steps as in core: draft, after-image, compare and set. Returns the change, for an undo."""
    (draft,) = drafts(backend, [key], operation, now)
    assert draft.skipped is None, draft.skipped
    change = Change(draft.unit, (key,), draft.before, ())
    change = change._replace(after=backend.after(change, operation, now, now))
    (outcome,) = backend.compare_and_set([change], operation, WHO)
    assert outcome.kind == "applied", outcome
    assert list(backend.images([change])) == [change.after]
    return change


def undo(backend: PartitionStore, change: Change) -> None:
    back = change._replace(before=change.after, after=change.before)
    assert [o.kind for o in backend.compare_and_set([back], Operation(Action.UNDO), WHO)] == ["applied"]


def harness(
    base: Path, policy: PolicyOverride = OWN, *, control: bool = False, url: str = "", control_url: str = "", read_only: bool = False
) -> Harness:
    store = Store(base, UNCHECKED, url)
    given = {"control_url": control_url} if control_url else {}
    if control:
        key = store.put(Partition("zz", "z", "z", "2020-01-01"))
        backend = store.open(PolicyOverride(), **given)
        act(backend, key, Operation(PartitionAction.PAUSE))
        backend.close()
        store.sql("DELETE FROM partition_state")

    def put(samples: Sequence[Sample]) -> int:
        rows = []
        for n, sample in enumerate(samples):
            partition = Partition("ads", _text(sample.id), _text(sample.type or ""), (NOON.date() - timedelta(days=n)).isoformat())
            if partition.invalid is None and n % 5:
                store.run(partition, run_id(1), records=1)
            rows.append((partition, {
                "status": _text(sample.status), "updated_at": _time(sample.updated, store.is_sqlite),
                "error_message": _text(sample.error), "attempt_count": _number(sample.attempts, store.is_sqlite),
            }))
        store.put_all(rows)
        return len(samples)

    def fingerprint() -> object:
        return tree_hash(store.base) if store.is_sqlite else (tree_hash(store.base), store.rows(), store.marks(url=control_url))

    statuses = ("pending", "failed", "success")
    backend = store.open(policy, read_only=read_only, **given)
    return Harness(backend, put, statuses, FrozenClock(), lambda _: (), fingerprint, client_view(store, policy, given))


def client_view(store: Store, policy: PolicyOverride, given: Mapping[str, Any]) -> ClientView:
    """The rows and marks as any client of the database sees them, without the plugin."""

    def rows() -> Mapping[ItemKey, object]:
        found = store.marks(*KEY, "terminal", "paused", "next_run_at", "request", url=given.get("control_url", ""))
        marks = {row[:4]: list(row[4:]) for row in found}
        return {ItemKey("parts", row[:4]): (row, marks.get(row[:4], [None] * 4)) for row in store.rows()}

    def touch(key: ItemKey) -> None:
        store.sql(f"UPDATE partition_state SET attempt_count = 7, updated_at = '2026-11-10T11:59:59Z' WHERE {SAME_KEY}", key.parts)

    def remove(key: ItemKey) -> None:
        store.sql(f"DELETE FROM partition_state WHERE {SAME_KEY}", key.parts)

    return ClientView(rows, touch, remove, lambda: store.open(policy, read_only=True, **given))


def _plain(value: Any) -> Any:
    """As SQLite would show it."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    return value.isoformat() if isinstance(value, date) else value


def _text(value: Any) -> Any:
    """What a database could not be given as text is bent into something like it."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _number(value: Any, is_sqlite: bool) -> Any:
    if is_sqlite:
        return _text(value)
    return max(min(value, 2**31 - 1), -(2**31)) if isinstance(value, int) else None


def _time(value: Any, is_sqlite: bool) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return _text(value) if is_sqlite else None
