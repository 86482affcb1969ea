"""Handing files back: what each budget does, what is blocked and why, conflicts, undo, and read-only."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import CHANGED, Authority, Budget, Change, Flag, Order, OutcomeKind
from console.core.faults import ReadOnlyRefused
from console.core.item import ItemKey
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Filter, Sort
from console.testing import NOON, FrozenClock
from plugins.file_queue import FileQueue
from plugins.file_queue.engine import FileTaskQueue
from tests.plugins.file_queue import folders

WHO = Authority("ops", "test", None, "o1")
FRESH = Order(budget=Budget.FRESH)
LATER = (NOON + timedelta(hours=1)).isoformat()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folders.make(tmp_path / "jobs")


def draft_of(backend: FileQueue, id: str, order: Order = folders.KEEP) -> Any:
    ((draft,),) = backend.drafts([ItemKey(backend.name, (id,))], Sort(), order, NOON, Never())
    return draft


@pytest.mark.parametrize(("order", "attempts"), [(Order(), 3), (FRESH, 0)])
def test_failed_goes_back_with_either_budget(base: Path, order: Order, attempts: int) -> None:
    folders.write_task(base, "a", error="boom")
    backend = folders.open_queue(base)
    (change,) = folders.plan(backend, "a", order=order, due=NOON + timedelta(minutes=5))
    assert backend.swap([change], order, WHO) == [CHANGED]
    assert folders.listing(base) == ["a.task"]
    found = folders.content(base / "queue" / "a.task")
    due = (NOON + timedelta(minutes=5)).isoformat()
    assert found == folders.fields("a", "PENDING", attempts=attempts, schedule={"eta": due, "interval": None}, updated_at=NOON.isoformat())
    assert (base / "results" / "a.result").exists(), "the result stays as evidence"
    assert list(backend.images([change])) == [change.after]


def test_keep_gives_exactly_one_more_execution(base: Path) -> None:
    folders.write_task(base, "a", error="boom")
    backend = folders.open_queue(base)
    backend.swap(folders.plan(backend, "a"), Order(), WHO)
    queue = FileTaskQueue(base, backend.policy, FrozenClock(NOON))
    claimed = queue.claim()
    assert claimed is not None
    assert claimed.attempts == 4
    assert queue.fail(claimed, "again")
    assert folders.listing(base) == ["a.done"]


BLOCKED: list[tuple[str, dict[str, Any], Order, str]] = [
    ("waiting", {"status": "PENDING", "attempts": 0}, Order(), "has not failed"),
    ("running", {"status": "RUNNING", "attempts": 1, "updated_at": NOON.isoformat()}, Order(), "within its limit"),
    ("done", {"status": "SUCCESS"}, Order(), "is done"),
    ("cancelled", {"status": "CANCELLED"}, Order(), "was cancelled"),
    ("unknown", {"status": "PAUSED"}, Order(), "named .done but its status is 'PAUSED'"),
    ("due-already", {"status": "PENDING", "attempts": 1}, Order(), "already due"),
    ("eta-no-time", {"status": "PENDING", "attempts": 1, "schedule": {"eta": "soon"}}, Order(), None),
    ("pull-forward-fresh", {"status": "PENDING", "attempts": 1, "schedule": {"eta": LATER}}, FRESH, "only be pulled forward"),
    ("stuck-used-up", {"status": "RUNNING", "attempts": 3, "updated_at": (NOON - timedelta(days=1)).isoformat()}, Order(), "use budget fresh"),
    ("hopeless", {"status": "FAILED", "error": "Invalid API key"}, Order(), "--allow-unrecoverable"),
    ("no-schedule", {"status": "FAILED", "schedule": None}, Order(), "could not be guarded"),
    ("attempts-text", {"status": "FAILED", "attempts": "3"}, Order(), "could not be guarded"),
    ("nan", {"status": "FAILED", "schedule": {"eta": None, "interval": float("nan")}}, Order(), "could not be guarded"),
    ("surrogate", {"status": "FAILED", "updated_at": "\udc80"}, Order(), None),
    ("huge-schedule", {"status": "FAILED", "schedule": {"eta": None, "x": "y" * 5000}}, Order(), "could not be guarded"),
]


@pytest.mark.parametrize(("given", "order", "why"), [case[1:] for case in BLOCKED], ids=[case[0] for case in BLOCKED])
def test_what_is_blocked_and_why(base: Path, given: dict[str, Any], order: Order, why: str | None) -> None:
    folders.write_task(base, "a", **given)
    backend = folders.open_queue(base, policy=PolicyOverride(unrecoverable=("invalid api key",)))
    before = folders.fingerprint(base)
    blocked = draft_of(backend, "a", order).blocked
    if why is None:
        assert blocked is None
    else:
        assert why in blocked
    assert folders.fingerprint(base) == before


def test_flags_budgets_and_warnings(base: Path) -> None:
    folders.write_task(base, "hopeless", error="invalid api key")
    folders.write_task(base, "stuck", "RUNNING", attempts=1, updated_at=(NOON - timedelta(hours=2)).isoformat())
    folders.write_task(base, "timeout", "RUNNING", attempts=1, timeout=30, updated_at=(NOON - timedelta(seconds=31)).isoformat())
    backend = folders.open_queue(base, policy=PolicyOverride(unrecoverable=("invalid api key",)))
    allowed = Order(flags=frozenset({Flag.ALLOW_UNRECOVERABLE}))
    assert draft_of(backend, "hopeless", allowed).blocked is None
    for id in ("stuck", "timeout"):
        assert "old worker may be alive" in draft_of(backend, id).warning
        assert backend.swap(folders.plan(backend, id), Order(), WHO) == [CHANGED]
    assert folders.listing(base) == ["hopeless.done", "stuck.task", "timeout.task"]


def test_a_retry_is_pulled_forward(base: Path) -> None:
    folders.write_task(base, "a", "PENDING", attempts=1, schedule={"eta": LATER, "interval": 7}, error="boom")
    backend = folders.open_queue(base)
    assert backend.swap(folders.plan(backend, "a"), Order(), WHO) == [CHANGED]
    found = folders.content(base / "queue" / "a.task")
    assert found["schedule"] == {"eta": NOON.isoformat(), "interval": 7}
    assert found["attempts"] == 1


@pytest.mark.parametrize(
    "mutation", [{"attempts": 4}, {"updated_at": NOON.isoformat()}, {"status": "SUCCESS"}, {"schedule": {"eta": "x"}}]
)
def test_what_changed_since_the_plan_is_conflicted_and_untouched(base: Path, mutation: dict[str, Any]) -> None:
    folders.write_task(base, "a")
    backend = folders.open_queue(base)
    changes = folders.plan(backend, "a")
    written = folders.write_task(base, "a", suffix="done", **{"status": "FAILED", **mutation}).read_bytes()
    (outcome,) = backend.swap(changes, Order(), WHO)
    assert outcome.kind is OutcomeKind.CONFLICTED
    assert folders.listing(base) == ["a.done"]
    assert (base / "queue" / "a.done").read_bytes() == written


def test_one_outcome_each_in_order(base: Path) -> None:
    for id in "abcde":
        folders.write_task(base, id)
    backend = folders.open_queue(base)
    changes = folders.plan(backend, *"abcde")
    (base / "queue" / "b.done").unlink()
    (base / "queue" / "c.done").rename(base / "queue" / "c.running")
    folders.write_task(base, "d", "PENDING", attempts=0)
    outcomes = backend.swap(changes, Order(), WHO)
    assert [o.kind for o in outcomes] == ["changed", "conflicted", "conflicted", "conflicted", "changed"]
    assert outcomes[1].detail == "no longer there"
    assert "running" in outcomes[2].detail
    assert "same id" in outcomes[3].detail, "a task file is never overwritten"
    assert folders.listing(base) == ["a.task", "c.running", "d.done", "d.task", "e.task"]


@pytest.mark.parametrize("order", [Order(), FRESH])
@pytest.mark.parametrize("given", [
    {"status": "FAILED"}, {"status": "RUNNING", "attempts": 1}, {"status": "PENDING", "attempts": 1, "schedule": {"eta": LATER}},
])
def test_undo_restores_exactly(base: Path, order: Order, given: dict[str, Any]) -> None:
    if given["status"] == "PENDING" and order is FRESH:
        order = Order()
    path = folders.write_task(base, "a", **given)
    original = folders.content(path)
    backend = folders.open_queue(base, policy=PolicyOverride(stuck_after=timedelta(minutes=1)))
    (change,) = folders.plan(backend, "a", order=order)
    assert backend.swap([change], order, WHO) == [CHANGED]
    undone = Change("", change.keys, change.after, change.before)
    assert backend.swap([undone], order, WHO) == [CHANGED]
    assert folders.listing(base) == [path.name]
    assert folders.content(path) == original


def test_drafts_by_filter_come_in_sort_order(base: Path) -> None:
    for n in range(20):
        folders.write_task(base, f"t{n:02}", created_at=(NOON - timedelta(minutes=n)).isoformat())
    backend = folders.open_queue(base)
    drafts = [d for batch in backend.drafts(Filter.parse("condition:terminal"), Sort.parse("created:asc"), Order(), NOON, Never()) for d in batch]
    assert [d.key for d in drafts] == [f"files/t{n:02}" for n in reversed(range(20))]
    assert all(json.loads(d.before)[0] == "done" for d in drafts)


def test_permissions_are_those_of_the_file_before(base: Path) -> None:
    folders.write_task(base, "a").chmod(0o640)
    backend = folders.open_queue(base)
    assert backend.swap(folders.plan(backend, "a"), Order(), WHO) == [CHANGED]
    assert (base / "queue" / "a.task").stat().st_mode & 0o777 == 0o640


def test_a_write_that_fails_is_that_items_outcome_and_the_task_stays(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plugins.file_queue.folder import Folder

    folders.write_task(base, "a")
    folders.write_task(base, "b")
    backend = folders.open_queue(base)
    changes = folders.plan(backend, "a", "b")
    real = Folder.create

    def full(self: Folder, name: str, content: bytes, like: Any = None) -> None:
        if name.startswith("a."):
            raise OSError(28, "No space left on device")
        real(self, name, content, like)

    monkeypatch.setattr(Folder, "create", full)
    outcomes = backend.swap(changes, Order(), WHO)
    assert [o.kind for o in outcomes] == [OutcomeKind.FAILED, OutcomeKind.CHANGED]
    assert outcomes[0].detail == "No space left on device"
    assert folders.listing(base) == ["a.done", "b.task"]


def test_read_only_never_writes(base: Path) -> None:
    folders.write_task(base, "a")
    folders.write_task(base, "b").rename(base / "queue" / "b.done.0123456789ab.retriage")
    changes = folders.plan(folders.open_queue(base), "a", "b")
    backend = folders.open_queue(base, read_only=True)
    before = folders.fingerprint(base)
    assert list(backend.images(changes)) == [change.before for change in changes]
    backend.check(FrozenClock())
    with pytest.raises(ReadOnlyRefused):
        backend.swap(changes, Order(), WHO)
    with pytest.raises(ReadOnlyRefused):
        backend.run(lambda *_: None, FrozenClock(), Never(), lambda _: None)
    assert folders.fingerprint(base) == before
