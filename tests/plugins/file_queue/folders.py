"""Folders of task files for tests, written as the queue writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from console.core.backend import Change, Operation
from console.core.item import ItemKey
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Sort
from console.testing import NOON, FrozenClock, Harness, Sample, Store
from plugins.file_queue import FileQueue
from plugins.file_queue.backend import Options

OWN = PolicyOverride()
KEEP = Operation()
PAYLOAD = "payload 4711"
STATUSES = ("PENDING", "RUNNING", "SUCCESS", "FAILED", "CANCELLED")
SUFFIXES = {"PENDING": "task", "RUNNING": "running"}


def make(base: Path) -> Path:
    for name in ("queue", "results"):
        (base / name).mkdir(parents=True)
    return base


def open_queue(
    base: Path, *, name: str = "files", policy: PolicyOverride = OWN, read_only: bool = False, deadline: timedelta = timedelta(minutes=10)
) -> FileQueue:
    return FileQueue.open(name, Options(path=str(base)), policy, read_only=read_only, deadline=deadline)


def stored(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value


def fields(id: str, status: Any = "FAILED", **given: Any) -> dict[str, Any]:
    return {
        "id": id, "func_path": "jobs.send", "args": [1], "kwargs": {"x": "é"}, "status": status,
        "schedule": {"eta": None, "interval": None}, "max_retries": 3, "timeout": None, "attempts": 3,
        "created_at": (NOON - timedelta(hours=2)).isoformat(), "updated_at": (NOON - timedelta(hours=1)).isoformat(),
        "last_attempt_at": (NOON - timedelta(hours=1)).isoformat(), **given,
    }


def write_task(base: Path, id: str, status: Any = "FAILED", *, suffix: str | None = None, error: str | None = None, **given: Any) -> Path:
    path = base / "queue" / f"{id}.{suffix or SUFFIXES.get(status, 'done')}"
    path.write_text(json.dumps(fields(id, status, **given)))
    if error is not None:
        write_result(base, id, status, error)
    return path


def write_result(base: Path, id: str, status: Any, error: str | None) -> None:
    result = {"task_id": id, "status": status, "result": None, "error": error, "finished_at": None, "attempts": 1, "last_attempt_at": None}
    (base / "results" / f"{id}.result").write_text(json.dumps(result))


def put_samples(base: Path, samples: Sequence[Sample]) -> int:
    """Write samples. Ids are file names here, so a slash is replaced by a similar character."""
    for sample in samples:
        id = sample.id.replace("/", "∕")
        write_task(
            base, id, sample.status, func_path=sample.type, kwargs={"x": PAYLOAD}, schedule={"eta": stored(sample.due)},
            max_retries=sample.max_attempts, timeout=sample.timeout, attempts=sample.attempts,
            created_at=stored(sample.created), updated_at=stored(sample.updated), last_attempt_at=stored(sample.updated),
        )
        if sample.error is not None:
            write_result(base, id, sample.status, sample.error)
    return len(samples)


def fingerprint(base: Path) -> dict[str, tuple[str, int]]:
    """The content and time of every file and folder."""
    return {
        str(path.relative_to(base)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() and not path.is_symlink() else "",
            path.lstat().st_mtime_ns,
        )
        for path in sorted(base.rglob("*"))
    }


def harness(base: Path, policy: PolicyOverride = OWN, *, read_only: bool = False) -> Harness:
    make(base)
    return Harness(
        open_queue(base, policy=policy, read_only=read_only), lambda samples: put_samples(base, samples), STATUSES,
        FrozenClock(), lambda item: [item.type], lambda: fingerprint(base), store(base, policy),
    )


def store(base: Path, policy: PolicyOverride) -> Store:
    """Reads and changes the files without the plugin."""

    def file_of(key: ItemKey) -> Path:
        (found,) = (path for path in (base / "queue").iterdir() if path.stem == key.parts[0])
        return found

    def rows() -> Mapping[ItemKey, object]:
        files = (path for path in (base / "queue").iterdir() if not path.name.startswith("."))
        return {ItemKey("files", (path.stem,)): (path.suffix, path.read_bytes()) for path in files}

    def touch(key: ItemKey) -> None:
        path = file_of(key)
        path.write_text(json.dumps({**content(path), "attempts": 1, "updated_at": "2026-11-10T11:59:59"}))

    def takes(key: ItemKey) -> bool:
        """What a worker looks for, except for the time."""
        path = file_of(key)
        return path.suffix == ".task" and content(path)["status"] == "PENDING"

    return Store(
        rows, touch, lambda key: file_of(key).unlink(), lambda: open_queue(base, policy=policy, read_only=True), PAYLOAD, takes=takes
    )


def listing(base: Path) -> list[str]:
    return sorted(path.name for path in (base / "queue").iterdir())


def content(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


def plan(backend: FileQueue, *ids: str, operation: Operation = KEEP, now: datetime = NOON, due: datetime = NOON) -> list[Change]:
    """Make changes with after-images from drafts, as core does. Fails the test if an item is skipped."""
    keys = [ItemKey(backend.name, (id,)) for id in ids]
    changes = []
    for batch in backend.drafts(keys, Sort(), operation, now, Never()):
        for draft in batch:
            assert draft.skipped is None, draft
            change = Change(draft.unit, (ItemKey.parse(draft.key),), draft.before, ())
            changes.append(change._replace(after=backend.after(change, operation, now, due)))
    return changes
