"""Every action and every rule: what is written, what is skipped and why, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from pydantic import ValidationError

from console.core.backend import Action, Attempts, Change, Operation, PageRequest, Severity
from console.core.faults import ReadOnlyRefused
from console.core.item import Condition, ItemKey
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.testing import ALL, NOON, FrozenClock
from plugins.partition_store.actions import INCLUDE_TERMINAL, PartitionAction
from plugins.partition_store.sink import Partition
from tests.plugins.partition_store.stores import (
    OWN,
    UNTOUCHABLE,
    WHO,
    Store,
    act,
    drafts,
    part,
    run_id,
    skipped,
    tree_hash,
    undo,
)

CLEAR = Operation(flags=frozenset({INCLUDE_TERMINAL}))
P = part()


@pytest.fixture(autouse=True)
def _one_run(store: Store) -> None:
    store.run(P, run_id(1))


VERDICTS: list[tuple[str, str, dict[str, Any], PolicyOverride, Condition, str]] = [
    ("waiting", "pending", {"attempt_count": None}, OWN, Condition.WAITING, "not run yet"),
    ("handed-back", "pending", {"attempt_count": 2}, OWN, Condition.RETRYING, "due now"),
    ("failed", "failed", {"attempt_count": 2}, OWN, Condition.FAILED, "not retried automatically"),
    ("attempts", "failed", {"attempt_count": 3}, OWN, Condition.TERMINAL, "3 of 3 attempts used"),
    ("beyond", "failed", {"attempt_count": 9}, OWN, Condition.TERMINAL, "9 of 3 attempts used"),
    ("no-limit", "failed", {"attempt_count": 99}, PolicyOverride(), Condition.FAILED, "99 attempts"),
    ("age", "failed", {}, PolicyOverride(max_age=timedelta(days=1, hours=12)), Condition.TERMINAL, "older than 1d12h"),
    ("young", "failed", {}, PolicyOverride(max_age=timedelta(days=1, hours=13)), Condition.FAILED, "not retried automatically"),
    ("text", "failed", {"error_message": "gone [terminal]"}, OWN, Condition.TERMINAL, "its error says [terminal]"),
    ("text-other-case", "failed", {"error_message": "gone [TERMINAL]"}, OWN, Condition.FAILED, "not retried"),
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


ACTIONS: dict[str, tuple[str, dict[str, Any], Operation, bool]] = {
    "retry": ("failed", {}, Operation(), False),
    "retry-terminal": ("failed", {"attempt_count": 5}, CLEAR, False),
    "retry-text-marked": ("failed", {"error_message": "x [terminal]"}, CLEAR, True),
    "reprocess": ("success", {"current_run_id": run_id(1), "record_count": 2}, Operation(PartitionAction.REPROCESS), True),
    "mark": ("failed", {}, Operation(PartitionAction.MARK_TERMINAL), True),
    "clear-text": ("failed", {"error_message": "x [terminal]"}, Operation(PartitionAction.CLEAR_TERMINAL), True),
    "pause": ("failed", {}, Operation(PartitionAction.PAUSE), True),
    "pause-pending": ("pending", {}, Operation(PartitionAction.PAUSE), True),
}


@pytest.mark.parametrize(("status", "given", "operation", "needs_control"), ACTIONS.values(), ids=ACTIONS)
def test_an_action_changes_what_it_says_and_undo_restores(
    store: Store, status: str, given: dict[str, Any], operation: Operation, needs_control: bool
) -> None:
    key = store.put(P, status, schema_version="v0", **given)
    backend = store.open()
    before, raw = store.row(P), tree_hash(store.raw)
    change = act(backend, key, operation)
    after = store.row(P)
    assert before is not None
    assert after is not None
    assert all(after[name] == before[name] for name in (*UNTOUCHABLE, "error_message"))
    assert after["status"] == ("pending" if operation.action == Action.REQUEUE else status)
    assert store.has_control() is needs_control, "created by the first confirmed write that needs it"
    undo(backend, change)
    assert store.row(P) == before
    assert list(backend.images([change])) == [change.before]
    assert tree_hash(store.raw) == raw


def test_marks_carry_who_when_and_why(store: Store) -> None:
    key = store.put(P)
    backend = store.open()
    act(backend, key, Operation(PartitionAction.MARK_TERMINAL))
    item = backend.items([key], NOON)[key]
    assert item.condition is Condition.TERMINAL
    assert item.verdict.why == "marked terminal by ops: because"
    assert "Terminal" in str(skipped(backend, key))
    native = dict(backend.item(key, NOON).native)
    assert (native["control.terminal_by"], native["control.terminal_why"]) == ("ops", "because")
    act(backend, key, Operation(PartitionAction.CLEAR_TERMINAL))
    assert backend.items([key], NOON)[key].condition is Condition.FAILED
    assert backend.page(PageRequest(Filter.parse("condition:failed"), NOON)).items[0].key == key


def test_clearing_a_text_marker_overrules_it_and_never_writes_it(store: Store) -> None:
    key = store.put(P, error_message="upstream gone [terminal]")
    backend = store.open()
    act(backend, key, Operation(PartitionAction.CLEAR_TERMINAL))
    assert backend.items([key], NOON)[key].condition is Condition.FAILED
    assert store.row(P)["error_message"] == "upstream gone [terminal]"
    ((mark, by),) = store.sql("SELECT terminal, terminal_by FROM retriage_partition_control")
    assert (mark.split()[:2], by) == (["overruled", "1"], "ops")


@pytest.mark.parametrize("kind", ["sqlite"], indirect=True)
@pytest.mark.parametrize("error", ["CAST(x'626164e9' AS TEXT)", "CAST('gone [terminal]' AS BLOB)"])
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
    act(backend, key, Operation(PartitionAction.PAUSE))
    item = backend.items([key], NOON)[key]
    assert not item.verdict.will_run_again
    assert item.verdict.why == "Paused by ops: because"
    assert store.validate(backend) == 0
    act(backend, key, Operation(PartitionAction.UNPAUSE))
    assert store.validate(backend) == 1


def _paused(store: Store) -> None:
    act(store.open(), ItemKey("parts", P), Operation(PartitionAction.PAUSE))


def _requested(store: Store) -> None:
    act(store.open(), ItemKey("parts", P), Operation(PartitionAction.REPROCESS))


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
RULES: dict[str, tuple[str, dict[str, Any], Operation, Prepare, str]] = {
    "reset": ("failed", {}, Operation(attempts=Attempts.RESET), None, "never reset"),
    "terminal": ("failed", {"attempt_count": 3}, Operation(), None, "Terminal."),
    "waiting": ("pending", {"attempt_count": 0}, Operation(), None, "Has not failed"),
    "outstanding": ("pending", {"attempt_count": 1}, Operation(), None, "Already requeued"),
    "done": ("success", {}, Operation(), None, "reprocess it instead"),
    "paused": ("failed", {}, Operation(), _paused, "Paused;"),
    "no-raw-run": ("failed", {}, Operation(), _no_runs, "has no run of it"),
    "no-sink": ("failed", {}, Operation(), _no_sink, "cannot be reached"),
    "symlink-out": ("failed", {}, Operation(), _link_out, "Invalid: 'logical_date=2026-11-09' is no folder"),
    "reprocess-failed": ("failed", {}, Operation(PartitionAction.REPROCESS), None, "only a success"),
    "reprocess-twice": ("success", {}, Operation(PartitionAction.REPROCESS), _requested, "Already requested"),
    "reprocess-no-run": ("success", {}, Operation(PartitionAction.REPROCESS), _no_runs, "has no run"),
    "mark-success": ("success", {}, Operation(PartitionAction.MARK_TERMINAL), None, "only a failed"),
    "clear-unmarked": ("failed", {}, Operation(PartitionAction.CLEAR_TERMINAL), None, "Not terminal"),
    "clear-by-policy": ("failed", {"attempt_count": 3}, Operation(PartitionAction.CLEAR_TERMINAL), None, "Terminal by policy"),
    "clear-pending": ("pending", {}, Operation(PartitionAction.CLEAR_TERMINAL), None, "Has not failed"),
    "pause-twice": ("failed", {}, Operation(PartitionAction.PAUSE), _paused, "Already paused"),
    "pause-done": ("success", {}, Operation(PartitionAction.PAUSE), None, "nothing to pause"),
    "unpause": ("failed", {}, Operation(PartitionAction.UNPAUSE), None, "Not paused"),
    "backfill-existing": ("failed", {}, Operation(PartitionAction.BACKFILL), None, "keeps its status"),
}


@pytest.mark.parametrize(("status", "given", "operation", "prepare", "why"), RULES.values(), ids=RULES)
def test_rules(store: Store, status: str, given: dict[str, Any], operation: Operation, prepare: Prepare, why: str) -> None:
    key = store.put(P, status, **given)
    if prepare is not None:
        prepare(store)
    before = store.row(P)
    assert why in str(skipped(store.open(), key, operation))
    assert store.row(P) == before


def test_reprocess_where_the_validator_is_not_ours(store: Store) -> None:
    key = store.put(P, "success")
    assert "would not see the request" in str(skipped(store.open(validator=False), key, Operation(PartitionAction.REPROCESS)))


@pytest.mark.parametrize("customer", ["..", ".", "a/b", "a\\b", "a\nb", "\x1b[31m", ""])
def test_unsafe_segments_are_invalid_and_never_followed(store: Store, customer: str) -> None:
    key = store.put(part(customer=customer))
    backend = store.open()
    (item,) = backend.page(PageRequest(ALL, NOON)).items
    assert any(note.startswith("invalid: its customer_id") for note in item.notes)
    assert "Invalid" in str(skipped(backend, key))
    assert "not a plain path segment" in str(backend.item(key, NOON).extra)


@pytest.mark.parametrize("day", ["2026-02-30", "soon", "20261109", "2026-11-09T00:00"])
def test_a_date_that_is_none_is_invalid(day: str) -> None:
    assert Partition("a", "b", "c", day).invalid == "its logical_date is not a date"


def test_what_changed_since_the_plan_is_not_touched(store: Store) -> None:
    key = store.put(P)
    backend = store.open()
    (draft,) = drafts(backend, [key])
    change = act(backend, key)
    undo(backend, change)
    store.sql("UPDATE partition_state SET attempt_count = 2")
    (outcome,) = backend.compare_and_set([change], Operation(), WHO)
    assert (outcome.kind, outcome.detail) == ("changed", "attempt_count is now 2, was 1")
    store.sql("DELETE FROM partition_state")
    (outcome,) = backend.compare_and_set([change], Operation(), WHO)
    assert outcome.detail == "no longer there"
    assert draft.skipped is None


def test_gaps_of_the_range_are_shown_and_backfilled_after_new_data(store: Store) -> None:
    for day in (3, 5):
        store.put(part(day), "pending", attempt_count=0)
        store.run(part(day), run_id(1, day))
    backend = store.open(range={"start": "2026-11-01", "end": "2026-11-06"})
    page = backend.page(PageRequest(Filter.parse("condition:waiting"), NOON))
    implicit = [item for item in page.items if not item.native_status]
    assert [item.key.parts[3][-2:] for item in implicit] == ["06", "04", "02", "01"]
    assert all("no row yet" in item.notes[0] for item in implicit)
    assert backend.counts(ALL, NOON)[Condition.WAITING].value == 6
    key = ItemKey("parts", part(6))
    assert "Has no row" in str(skipped(backend, key))
    change = act(backend, key, Operation(PartitionAction.BACKFILL))
    assert store.row(part(6))["status"] == "pending"
    store.run(part(6), run_id(1, 6))
    operation: list[str] = []
    validator = store.validator(backend, handler=lambda p, _: operation.append(p.logical_date[-2:]))
    validator.cycle(lambda _: None, Flagless())
    store.put(part(2), "pending", attempt_count=0)  # older than the backfill, but fresh
    store.run(part(2), run_id(1, 2))
    validator.cycle(lambda _: None, Flagless())
    validator.cycle(lambda _: None, Flagless())
    assert operation == ["05", "03", "02", "06"], "fresh data first, also what comes later, the backfill last"
    other = act(backend, ItemKey("parts", part(1)), Operation(PartitionAction.BACKFILL))
    undo(backend, other)
    assert store.row(part(1)) is None
    assert change.before[0] is None


class Flagless:
    requested = False


def test_backfill_outside_any_range_by_key(store: Store) -> None:
    backend = store.open()
    key = ItemKey("parts", ("ads", "new", "spend", "2025-01-01"))
    act(backend, key, Operation(PartitionAction.BACKFILL))
    assert backend.items([key], NOON)[key].condition is Condition.WAITING
    bad = ItemKey("parts", ("ads", "..", "spend", "2025-01-01"))
    assert "Invalid" in str(skipped(backend, bad, Operation(PartitionAction.BACKFILL)))


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
    assert draft.skipped is None
    change = act_only(backend, key)
    with pytest.raises(ReadOnlyRefused):
        backend.compare_and_set([change], Operation(), WHO)
    with pytest.raises(ReadOnlyRefused):
        backend.run(lambda *_: None, FrozenClock(), Flagless(), lambda _: None)
    assert tree_hash(store.base) == before


def act_only(backend: Any, key: ItemKey) -> Any:
    (draft,) = drafts(backend, [key])
    change = Change("", (key,), draft.before, ())
    return change._replace(after=backend.after(change, Operation(), NOON, NOON))


# -- discard ---------------------------------------------------------------------------------------------

DISCARD = Operation(Action.DISCARD)
GIVEN_UP = "Already given up by its system; acknowledge the cause instead."


@pytest.mark.parametrize("ours", [True, False])
def test_a_discard_is_the_terminal_mark(store: Store, ours: bool) -> None:
    key = store.put(P, "failed", attempt_count=1)
    backend, before = store.open(validator=ours), store.row(P)
    (draft,) = drafts(backend, [key], DISCARD)
    only_here = "Another program validates it and ignores this mark; only Retriage obeys it."
    assert (draft.skipped, draft.warning.text if draft.warning else None) == (None, None if ours else only_here)
    change = act(backend, key, DISCARD)
    assert store.row(P) == before
    item = backend.items([key], NOON)[key]
    assert (item.condition, item.verdict.will_run_again) == (Condition.TERMINAL, False)
    assert item.verdict.why.startswith("marked terminal by ")
    assert skipped(backend, key, DISCARD) == GIVEN_UP
    undo(backend, change)
    assert backend.items([key], NOON)[key].condition is Condition.FAILED


@pytest.mark.parametrize(("status", "given", "why"), [
    ("pending", {"attempt_count": 2}, "Not failed now, so it cannot be terminal. Pause it, or undo its requeue."),
    ("pending", {"attempt_count": 0}, "Has not failed; it waits for its first run."),
    ("failed", {"attempt_count": 3}, GIVEN_UP),
    ("success", {}, "Already done."),
])
def test_only_a_failed_partition_is_discarded(store: Store, status: str, given: dict[str, Any], why: str) -> None:
    assert skipped(store.open(), store.put(P, status, **given), DISCARD) == why
