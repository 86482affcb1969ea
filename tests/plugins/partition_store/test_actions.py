"""Every action and every rail: what is written, what is blocked and why, and that nothing else changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from console.core.backend import Action, Budget, Change, Flag, Order, PageRequest, Severity
from console.core.faults import ReadOnlyRefused
from console.core.item import Condition, ItemKey
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.testing import ALL, NOON, FrozenClock
from plugins.partition_store.sink import Partition
from tests.plugins.partition_store.stores import (
    OWN,
    UNTOUCHABLE,
    WHO,
    Store,
    act,
    blocked,
    drafts,
    part,
    run_id,
    tree_hash,
    undo,
)

CLEAR = Order(flags=frozenset({Flag.CLEAR_TERMINAL}))
P = part()


@pytest.fixture(autouse=True)
def _one_run(store: Store) -> None:
    store.run(P, run_id(1))


VERDICTS: list[tuple[str, str, dict[str, Any], PolicyOverride, Condition, str]] = [
    ("waiting", "pending", {"attempt_count": None}, OWN, Condition.WAITING, "not run yet"),
    ("handed-back", "pending", {"attempt_count": 2}, OWN, Condition.RETRYING, "due now"),
    ("failed", "failed", {"attempt_count": 2}, OWN, Condition.FAILED, "nothing retries it by itself"),
    ("attempts", "failed", {"attempt_count": 3}, OWN, Condition.TERMINAL, "3 of 3 attempts used"),
    ("beyond", "failed", {"attempt_count": 9}, OWN, Condition.TERMINAL, "9 of 3 attempts used"),
    ("no-limit", "failed", {"attempt_count": 99}, PolicyOverride(), Condition.FAILED, "99 attempts"),
    ("age", "failed", {}, PolicyOverride(max_age=timedelta(days=1, hours=12)), Condition.TERMINAL, "older than 1d12h"),
    ("young", "failed", {}, PolicyOverride(max_age=timedelta(days=1, hours=13)), Condition.FAILED, "nothing retries"),
    ("text", "failed", {"error_message": "gone [TERMINAL]"}, OWN, Condition.TERMINAL, "its error says [terminal]"),
    ("text-pending", "pending", {"error_message": "[terminal]"}, OWN, Condition.RETRYING, "due now"),
    ("success", "success", {"attempt_count": 9}, OWN, Condition.DONE, "finished"),
]


@pytest.mark.parametrize(("status", "given", "policy", "condition", "why"), [v[1:] for v in VERDICTS], ids=[v[0] for v in VERDICTS])
def test_verdicts_each_with_its_why(store: Store, status: str, given: dict[str, Any], policy: PolicyOverride, condition: Condition, why: str) -> None:
    store.put(P, status, **given)
    (item,) = store.open(policy).page(PageRequest(ALL, NOON)).items
    assert item.condition is condition
    assert why in item.verdict.why
    assert not store.has_control(), "reading creates nothing"


ACTIONS: dict[str, tuple[str, dict[str, Any], Order, bool]] = {
    "retry": ("failed", {}, Order(), False),
    "retry-terminal": ("failed", {"attempt_count": 5}, CLEAR, False),
    "retry-text-marked": ("failed", {"error_message": "x [terminal]"}, CLEAR, True),
    "reprocess": ("success", {"current_run_id": run_id(1), "record_count": 2}, Order(Action.REPROCESS), True),
    "mark": ("failed", {}, Order(Action.MARK_TERMINAL), True),
    "clear-text": ("failed", {"error_message": "x [terminal]"}, Order(Action.CLEAR_TERMINAL), True),
    "pause": ("failed", {}, Order(Action.PAUSE), True),
    "pause-pending": ("pending", {}, Order(Action.PAUSE), True),
}


@pytest.mark.parametrize(("status", "given", "order", "needs_control"), ACTIONS.values(), ids=ACTIONS)
def test_an_action_changes_what_it_says_and_undo_restores(
    store: Store, status: str, given: dict[str, Any], order: Order, needs_control: bool
) -> None:
    key = store.put(P, status, schema_version="v0", **given)
    backend = store.open()
    before, raw = store.row(P), tree_hash(store.raw)
    change = act(backend, key, order)
    after = store.row(P)
    assert before is not None
    assert after is not None
    assert all(after[name] == before[name] for name in (*UNTOUCHABLE, "error_message"))
    assert after["status"] == ("pending" if order.action is Action.REQUEUE else status)
    assert store.has_control() is needs_control, "created by the first confirmed write that needs it"
    undo(backend, change)
    assert store.row(P) == before
    assert list(backend.images([change])) == [change.before]
    assert tree_hash(store.raw) == raw


def test_marks_carry_who_when_and_why(store: Store) -> None:
    key = store.put(P)
    backend = store.open()
    act(backend, key, Order(Action.MARK_TERMINAL))
    item = backend.items([key], NOON)[key]
    assert item.condition is Condition.TERMINAL
    assert item.verdict.why == "marked terminal by ops: because"
    assert "terminal" in str(blocked(backend, key))
    native = dict(backend.item(key, NOON).native)
    assert (native["control.terminal_by"], native["control.terminal_why"]) == ("ops", "because")
    act(backend, key, Order(Action.CLEAR_TERMINAL))
    assert backend.items([key], NOON)[key].condition is Condition.FAILED
    assert backend.page(PageRequest(Filter.parse("condition:failed"), NOON)).items[0].key == key


def test_clearing_a_text_marker_overrules_it_and_never_writes_it(store: Store) -> None:
    key = store.put(P, error_message="upstream gone [terminal]")
    backend = store.open()
    act(backend, key, Order(Action.CLEAR_TERMINAL))
    assert backend.items([key], NOON)[key].condition is Condition.FAILED
    assert store.row(P)["error_message"] == "upstream gone [terminal]"
    assert store.sql("SELECT terminal, terminal_by FROM retriage_partition_control") == [("overruled", "ops")]


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("error", ["CAST(x'626164e9' AS TEXT)", "CAST('gone [Terminal]' AS BLOB)"])
def test_an_error_that_is_no_text_is_no_obstacle(store: Store, error: str) -> None:
    key = store.put(P)
    store.sql(f"UPDATE partition_state SET error_message = {error}")
    backend, before = store.open(), store.sql("SELECT hex(error_message), status FROM partition_state")
    change = act(backend, key, CLEAR)
    undo(backend, change)
    assert store.sql("SELECT hex(error_message), status FROM partition_state") == before
    assert list(backend.images([change])) == [change.before]


def test_pause_and_unpause(store: Store) -> None:
    key = store.put(P, "pending", attempt_count=0)
    backend = store.open()
    act(backend, key, Order(Action.PAUSE))
    item = backend.items([key], NOON)[key]
    assert not item.verdict.will_run_again
    assert "paused by ops: because" in item.verdict.why
    assert store.validate(backend) == 0
    act(backend, key, Order(Action.UNPAUSE))
    assert store.validate(backend) == 1


def _paused(store: Store) -> None:
    act(store.open(), ItemKey("parts", P), Order(Action.PAUSE))


def _requested(store: Store) -> None:
    act(store.open(), ItemKey("parts", P), Order(Action.REPROCESS))


def _no_runs(store: Store) -> None:
    store.raw.rename(store.base / "gone")
    store.raw.mkdir()


def _no_sink(store: Store) -> None:
    store.raw.rename(store.base / "gone")


def _link_out(store: Store) -> None:
    folder = store.raw.joinpath(*P.segments)
    folder.rename(store.base / "elsewhere")
    folder.symlink_to(store.base / "elsewhere")


Prepare = Callable[[Store], None] | None
RAILS: dict[str, tuple[str, dict[str, Any], Order, Prepare, str]] = {
    "fresh": ("failed", {}, Order(budget=Budget.FRESH), None, "fresh is refused"),
    "terminal": ("failed", {"attempt_count": 3}, Order(), None, "--clear-terminal"),
    "waiting": ("pending", {"attempt_count": 0}, Order(), None, "has not failed"),
    "outstanding": ("pending", {"attempt_count": 1}, Order(), None, "a requeue is outstanding"),
    "done": ("success", {}, Order(), None, "reprocess it instead"),
    "paused": ("failed", {}, Order(), _paused, "is paused"),
    "no-raw-run": ("failed", {}, Order(), _no_runs, "shows no run of it"),
    "no-sink": ("failed", {}, Order(), _no_sink, "cannot be reached"),
    "symlink-out": ("failed", {}, Order(), _link_out, "is invalid: 'logical_date=2026-11-09' is no folder"),
    "reprocess-failed": ("failed", {}, Order(Action.REPROCESS), None, "only a success"),
    "reprocess-twice": ("success", {}, Order(Action.REPROCESS), _requested, "outstanding already"),
    "reprocess-no-run": ("success", {}, Order(Action.REPROCESS), _no_runs, "shows no run"),
    "mark-success": ("success", {}, Order(Action.MARK_TERMINAL), None, "only a failed"),
    "clear-unmarked": ("failed", {}, Order(Action.CLEAR_TERMINAL), None, "is not terminal"),
    "clear-by-policy": ("failed", {"attempt_count": 3}, Order(Action.CLEAR_TERMINAL), None, "terminal by policy"),
    "clear-pending": ("pending", {}, Order(Action.CLEAR_TERMINAL), None, "has not failed"),
    "pause-twice": ("failed", {}, Order(Action.PAUSE), _paused, "paused already"),
    "pause-done": ("success", {}, Order(Action.PAUSE), None, "nothing to pause"),
    "unpause": ("failed", {}, Order(Action.UNPAUSE), None, "is not paused"),
    "backfill-existing": ("failed", {}, Order(Action.BACKFILL), None, "keeps its status"),
}


@pytest.mark.parametrize(("status", "given", "order", "prepare", "why"), RAILS.values(), ids=RAILS)
def test_rails(store: Store, status: str, given: dict[str, Any], order: Order, prepare: Prepare, why: str) -> None:
    key = store.put(P, status, **given)
    if prepare is not None:
        prepare(store)
    before = store.row(P)
    assert why in str(blocked(store.open(), key, order))
    assert store.row(P) == before


def test_reprocess_where_the_validator_is_not_ours(store: Store) -> None:
    key = store.put(P, "success")
    assert "could not be picked up" in str(blocked(store.open(validator=False), key, Order(Action.REPROCESS)))


@pytest.mark.parametrize("customer", ["..", ".", "a/b", "a\\b", "a\nb", "\x1b[31m", ""])
def test_unsafe_segments_are_invalid_and_never_followed(store: Store, customer: str) -> None:
    key = store.put(part(customer=customer))
    backend = store.open()
    (item,) = backend.page(PageRequest(ALL, NOON)).items
    assert any(note.startswith("invalid: its customer_id") for note in item.notes)
    assert "is invalid" in str(blocked(backend, key))
    assert "not a plain path segment" in str(backend.item(key, NOON).extra)


@pytest.mark.parametrize("day", ["2026-02-30", "soon", "20261109", "2026-11-09T00:00"])
def test_a_date_that_is_none_is_invalid(day: str) -> None:
    assert Partition("a", "b", "c", day).invalid == "its logical_date is not a date"


def test_what_changed_since_the_plan_is_conflicted(store: Store) -> None:
    key = store.put(P)
    backend = store.open()
    (draft,) = drafts(backend, [key])
    change = act(backend, key)
    undo(backend, change)
    store.sql("UPDATE partition_state SET attempt_count = 2")
    (outcome,) = backend.swap([change], Order(), WHO)
    assert (outcome.kind, outcome.detail) == ("conflicted", "attempt_count is now 2, was 1")
    store.sql("DELETE FROM partition_state")
    (outcome,) = backend.swap([change], Order(), WHO)
    assert outcome.detail == "no longer there"
    assert draft.blocked is None


def test_gaps_of_the_range_are_shown_and_backfilled_after_fresh_data(store: Store) -> None:
    for day in (3, 5):
        store.put(part(day), "pending", attempt_count=0)
        store.run(part(day), run_id(1, day))
    backend = store.open(range={"start": "2026-11-01", "end": "2026-11-06"})
    page = backend.page(PageRequest(Filter.parse("condition:waiting"), NOON))
    implicit = [item for item in page.items if not item.native_status]
    assert [item.key.parts[3][-2:] for item in implicit] == ["06", "04", "02", "01"]
    assert all("implicitly pending" in item.notes[0] for item in implicit)
    assert backend.counts(ALL, NOON)[Condition.WAITING].value == 6
    key = ItemKey("parts", part(6))
    assert "has no row" in str(blocked(backend, key))
    change = act(backend, key, Order(Action.BACKFILL))
    assert store.row(part(6))["status"] == "pending"
    store.run(part(6), run_id(1, 6))
    order: list[str] = []
    validator = store.validator(backend, handler=lambda p, _: order.append(p.logical_date[-2:]))
    validator.cycle(lambda _: None, Flagless())
    store.put(part(2), "pending", attempt_count=0)  # older than the backfill, but fresh
    store.run(part(2), run_id(1, 2))
    validator.cycle(lambda _: None, Flagless())
    validator.cycle(lambda _: None, Flagless())
    assert order == ["05", "03", "02", "06"], "fresh data first, also what comes later, the backfill last"
    other = act(backend, ItemKey("parts", part(1)), Order(Action.BACKFILL))
    undo(backend, other)
    assert store.row(part(1)) is None
    assert change.before[0] is None


class Flagless:
    requested = False


def test_backfill_outside_any_range_by_key(store: Store) -> None:
    backend = store.open()
    key = ItemKey("parts", ("ads", "new", "spend", "2025-01-01"))
    act(backend, key, Order(Action.BACKFILL))
    assert backend.items([key], NOON)[key].condition is Condition.WAITING
    bad = ItemKey("parts", ("ads", "..", "spend", "2025-01-01"))
    assert "is invalid" in str(blocked(backend, bad, Order(Action.BACKFILL)))


@pytest.mark.parametrize("given", [{"start": "1900-01-01"}, {"start": "2026-02-02", "end": "2026-01-01"}])
def test_absurd_ranges_are_refused_with_the_count(store: Store, given: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=r"it spans -?\d+ days"):
        store.open(range=given)


def test_runs_and_the_current_one(store: Store) -> None:
    store.run(P, run_id(2), records=5)
    store.run(P, run_id(3), seal=False)
    key = store.put(P, "success", current_run_id=run_id(2))
    extra = dict(store.open().item(key, NOON).extra)
    assert extra[f"run {run_id(2)} (current)"].endswith("sealed, 5 records")
    assert "not sealed" in extra[f"run {run_id(3)}"]
    store.sql("UPDATE partition_state SET current_run_id = 'nowhere'")
    extra = dict(store.open().item(key, NOON).extra)
    assert "no such run" in extra["invariant violation"]


def test_check_and_read_only(store: Store) -> None:
    key = store.put(P)
    backend = store.open(PolicyOverride(), read_only=True)
    before = tree_hash(store.base)
    findings = {finding.subject: finding for finding in backend.check(FrozenClock())}
    assert findings["policy"].severity is Severity.WARNING
    assert findings["raw sink"].severity is Severity.OK
    (draft,) = drafts(backend, [key])
    assert draft.blocked is None
    change = act_only(backend, key)
    with pytest.raises(ReadOnlyRefused):
        backend.swap([change], Order(), WHO)
    with pytest.raises(ReadOnlyRefused):
        backend.run(lambda *_: None, FrozenClock(), Flagless(), lambda _: None)
    assert tree_hash(store.base) == before


def act_only(backend: Any, key: ItemKey) -> Any:
    (draft,) = drafts(backend, [key])
    change = Change("", (key,), tuple(json.loads(draft.before)), ())
    return change._replace(after=backend.after(change, Order(), NOON, NOON))
