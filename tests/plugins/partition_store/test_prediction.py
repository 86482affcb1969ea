"""What is predicted for a partition, and whether its validator keeps it; marks of ours and of the real program."""

from __future__ import annotations

import json
import random
from datetime import timedelta
from typing import Any

import pytest

from console.core.advice import Advice, Step
from console.core.backend import Change, Operation, PageRequest, Severity
from console.core.item import Condition, ItemKey
from console.core.ports import Never
from console.core.query import Filter
from console.testing import NOON, FrozenClock
from plugins.partition_store import PartitionStore
from plugins.partition_store.actions import FORCE_PENDING, INCLUDE_TERMINAL, PartitionAction
from plugins.partition_store.rows import MARKED
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition
from tests.plugins.partition_store import model
from tests.plugins.partition_store.stores import OWN, WHO, Store, act, drafts, part, run_id, skipped, undo
from tests.promises import Record

P = part()
KEY = ItemKey("parts", P)
EVERYTHING = PageRequest(Filter.parse("condition:*"), NOON, limit=10_000)
FORCED = frozenset({FORCE_PENDING})


def operation(action: PartitionAction, *flags: str) -> Operation:
    return Operation(action, flags=frozenset(flags))


def condition(store: Store, **given: Any) -> Condition:
    backend = store.open(**given)
    found = backend.items([KEY], NOON)[KEY].condition
    assert [item.key for item in backend.page(PageRequest(Filter.parse(f"condition:{found}"), NOON)).items] == [KEY]
    return found


# -- a mark of the real program ----------------------------------------------------------------------


@pytest.mark.parametrize("later", [{"attempt_count": 2}, {"error_message": "gone again [terminal]"}])
def test_an_overrule_holds_for_that_failure_only(store: Store, later: dict[str, Any]) -> None:
    store.put(P, error_message="gone [terminal]")
    assert condition(store) is Condition.TERMINAL
    act(store.open(), KEY, operation(PartitionAction.CLEAR_TERMINAL))
    assert condition(store) is Condition.FAILED
    store.sql(f"UPDATE partition_state SET {', '.join(f'{name} = ?' for name in later)}", list(later.values()))
    assert condition(store) is Condition.TERMINAL
    change = act(store.open(), KEY, operation(PartitionAction.CLEAR_TERMINAL))
    assert condition(store) is Condition.FAILED
    undo(store.open(), change)
    assert condition(store) is Condition.TERMINAL


def test_an_overrule_by_a_requeue_ends_with_the_next_failure(store: Store) -> None:
    store.put(P, error_message="gone [terminal]")
    store.run(P, run_id(1), counted=7)
    act(store.open(), KEY, operation(PartitionAction.REQUEUE, INCLUDE_TERMINAL))
    assert store.validate(store.open()) == 1
    assert condition(store) is Condition.FAILED
    store.sql("UPDATE partition_state SET error_message = 'gone [terminal]'")
    assert condition(store) is Condition.TERMINAL


def test_the_marker_is_case_sensitive(store: Store) -> None:
    store.put(P, error_message="gone [Terminal]")
    assert condition(store) is Condition.FAILED


# -- a validator that is not ours --------------------------------------------------------------------


def test_marks_bind_only_this_console_where_the_validator_is_not_ours(store: Store) -> None:
    store.put(P, "pending", attempt_count=0)
    backend = store.open(validator=False)
    (draft,) = drafts(backend, [KEY], operation(PartitionAction.PAUSE))
    assert draft.warning.text == (
        "Another program validates it and ignores this mark; only Retriage obeys it."
    )
    act(backend, KEY, operation(PartitionAction.PAUSE))
    item = backend.items([KEY], NOON)[KEY]
    assert item.verdict.will_run_again
    assert "paused (only in this console: its validator does not read that)" in item.notes
    store.sql("UPDATE partition_state SET status = 'failed', error_message = 'x'")
    act(backend, KEY, operation(PartitionAction.MARK_TERMINAL))
    why = backend.items([KEY], NOON)[KEY].verdict.why
    assert why == "marked terminal by ops: because (only in this console: its validator does not read that)"


def test_the_real_programs_own_mark_is_not_ours_to_clear(store: Store) -> None:
    store.put(P, error_message="gone [terminal]")
    backend = store.open(validator=False)
    clear = operation(PartitionAction.CLEAR_TERMINAL)
    assert skipped(backend, KEY, clear) == "Its own system marked it terminal, and only that can clear the mark."
    act(backend, KEY, operation(PartitionAction.MARK_TERMINAL))
    act(backend, KEY, clear)
    assert condition(store, validator=False) is Condition.TERMINAL


# -- no run --------------------------------------------------------------------------------------------


def test_without_a_run_the_advice_is_to_force_and_that_works(store: Store) -> None:
    store.put(P, attempt_count=2, current_run_id="old", record_count=7, schema_version="v1")
    backend = store.open()
    advice = Advice(Step.TURN_ON, "force_pending")
    for action in (PartitionAction.REQUEUE, PartitionAction.BACKFILL):
        (draft,) = drafts(backend, [KEY], operation(action))
        assert draft.skipped.advice == advice
        assert "backfill" not in draft.skipped.text
        before = store.row(P)
        change = act(backend, KEY, operation(action, FORCE_PENDING))
        after = store.row(P)
        assert (after["status"], after["attempt_count"], after["current_run_id"]) == ("pending", 2, "old")
        assert (after["record_count"], after["schema_version"]) == (7, "v1")
        undo(backend, change)
        assert store.row(P) == before


def test_forcing_a_success_warns_that_consumers_lose_it(store: Store) -> None:
    store.put(P, "success")
    (draft,) = drafts(store.open(), [KEY], operation(PartitionAction.BACKFILL, FORCE_PENDING))
    assert draft.warning.text == "It has succeeded: consumers cannot read it until it succeeds again."


# -- a run that does not exist -------------------------------------------------------------------------


def test_a_current_run_that_does_not_exist_is_shown_in_lists_and_by_check(store: Store) -> None:
    store.put(P, "success", current_run_id="nowhere")
    store.put(part(8), "success", current_run_id=run_id(1))
    store.run(part(8), run_id(1))
    backend = store.open()
    notes = {item.key: item.notes for item in backend.page(EVERYTHING).items}
    assert notes == {
        KEY: ("current_run_id names a run that does not exist: nowhere",), ItemKey("parts", part(8)): (),
    }
    why = {item.key: item.verdict.why for item in backend.page(EVERYTHING).items}
    assert why[KEY] == "finished; current_run_id names a run that does not exist"
    found = {finding.subject: finding for finding in backend.check(FrozenClock(NOON))}
    assert found["invariant"].severity is Severity.ERROR
    assert found["invariant"].message.startswith("1 of the newest 2 partitions name a current run that the raw sink")
    assert "nowhere" in found["invariant"].message


# -- malformed runs ------------------------------------------------------------------------------------

LINES = b'{"n": 1}\n{"n": 2}\n'


def metadata_of(**given: Any) -> bytes:
    return json.dumps(given).encode()


SHAPES: dict[str, tuple[str, bytes | None, bytes | None]] = {
    "usual": (run_id(1), LINES, metadata_of(record_count=2)),
    "no-count": (run_id(1), LINES, metadata_of(source="ads")),
    "count-as-text": (run_id(1), LINES, metadata_of(record_count=" 2 ")),
    "count-as-float": (run_id(1), LINES, metadata_of(record_count=2.9)),
    "count-as-bool": (run_id(1), b"1\n", metadata_of(record_count=True)),
    "count-null": (run_id(1), LINES, metadata_of(record_count=None)),
    "count-word": (run_id(1), LINES, metadata_of(record_count="two")),
    "count-infinite": (run_id(1), LINES, b'{"record_count": 1e999}'),
    "count-negative": (run_id(1), LINES, metadata_of(record_count=-1)),
    "not-an-object": (run_id(1), LINES, b"[2]"),
    "not-json": (run_id(1), LINES, b"{"),
    "metadata-in-utf-16": (run_id(1), LINES, '{"record_count": 2}'.encode("utf-16")),
    "metadata-with-bom": (run_id(1), LINES, b"\xef\xbb\xbf" + metadata_of(record_count=2)),
    "payload-in-utf-16": (run_id(1), "1\n".encode("utf-16"), metadata_of(record_count=1)),
    "payload-with-carriage-returns": (run_id(1), b"1\r2\r\n3", metadata_of(record_count=3)),
    "payload-empty": (run_id(1), b"", metadata_of(record_count=0)),
    "payload-empty-no-count": (run_id(1), b"\n \n", metadata_of()),
    "payload-broken": (run_id(1), b"{oops\n", metadata_of(record_count=None)),
    "other-run-in-metadata": (run_id(1), LINES, metadata_of(record_count=2, run_id=run_id(5))),
    "naive-run-id": ("2026-11-09T01:00:00", LINES, metadata_of(record_count=2)),
    "odd-run-id": ("latest", LINES, metadata_of(record_count=2)),
    "no-metadata": (run_id(1), LINES, None),
    "no-payload": (run_id(1), None, metadata_of(record_count=0)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_malformed_runs_are_judged_as_the_real_validator_does(store: Store, shape: str) -> None:
    run, payload, metadata = SHAPES[shape]
    store.put(P, "pending", attempt_count=1)
    folder = store.folder(P, run)
    folder.mkdir(parents=True)
    for name, content in ((PAYLOAD, payload), (METADATA, metadata)):
        if content is not None:
            (folder / name).write_bytes(content)
    expected = model.verdict(payload, metadata)
    store.validate(store.open())
    row = store.row(P)
    assert row is not None
    if expected == "error":
        assert (row["status"], row["attempt_count"]) == ("pending", 1)
    else:
        assert (row["status"], row["attempt_count"]) == (expected, 2)
        assert row["current_run_id"] == (run if expected == "success" else None)
    store.open().item(KEY, NOON)


def test_the_newest_run_is_the_last_by_name_whatever_it_looks_like(store: Store) -> None:
    store.put(P, "pending")
    for run in (run_id(1), "2026-11-09T02:00:00", "zzz"):
        store.run(P, run)
    store.validate(store.open())
    assert store.row(P)["current_run_id"] == model.newest({run_id(1): 0, "2026-11-09T02:00:00": 0, "zzz": 0}) == "zzz"


# -- generated stores ----------------------------------------------------------------------------------


def filled(store: Store, count: int, seed: int) -> list[model.Row]:
    """Partitions in every state with marks of every kind."""
    chance = random.Random(seed)
    key = store.put(P)
    change = act(store.open(), key, operation(PartitionAction.PAUSE))
    undo(store.open(), change)
    store.sql("DELETE FROM partition_state")
    rows, states, marks = [], [], []
    for n in range(count):
        partition = Partition("ads", f"c{n}", "spend", f"2026-{chance.randrange(1, 11):02}-{chance.randrange(1, 29):02}")
        due = chance.choice((None, NOON - timedelta(hours=1), NOON + timedelta(hours=chance.randrange(1, 23))))
        row = {
            "id": partition.customer_id, "status": chance.choice(("pending", "failed", "success")), "has_row": True,
            "paused": chance.choice((None, None, None, "paused")), "next_run_at": due,
            "request": chance.choice((None, "reprocess", "backfill")),
            "terminal": chance.choice((None, None, None, MARKED)),
        }
        rows.append(row)
        states.append((partition, {"status": row["status"], "attempt_count": chance.randrange(5)}))
        marks.append([*partition, row["paused"], due and due.isoformat(), row["request"], row["terminal"]])
        if chance.random() < 0.8:
            store.run(partition, run_id(1), records=1, counted=chance.choice((1, 1, 2)))
    store.put_all(states)
    store.sql(
        "INSERT INTO retriage_partition_control (source, customer_id, query_name, logical_date, paused, next_run_at, request, terminal)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)", marks, many=True,
    )
    return rows


@pytest.mark.parametrize("ours", [True, False], ids=["ours", "not-ours"])
def test_predictions_hold_for_a_day(store: Store, ours: bool, promises: Record) -> None:
    rows = filled(store, 520, seed=int(ours))
    backend = store.open(OWN, validator=ours)
    predicted = {item.key.parts[1]: item.verdict.will_run_again for item in backend.page(EVERYTHING).items}
    expected = model.day(rows, NOON, ours=ours)
    promises("partition_store", predicted, expected)
    assert None not in predicted.values()
    if not ours:
        return
    assert tried_in_a_day(store, backend) == expected


def tried_in_a_day(store: Store, backend: PartitionStore) -> set[str]:
    """The partitions that our validator takes."""
    tried: set[str] = set()
    validator = store.validator(backend)
    for _ in range(25):
        while validator.cycle(lambda line: tried.add(line.split("/")[1]), Never()):
            pass
        store.clock.tick(timedelta(hours=1))
    return tried


@pytest.mark.parametrize("flags", [(), (INCLUDE_TERMINAL,), (INCLUDE_TERMINAL, FORCE_PENDING)], ids=["plain", "terminal", "forced"])
def test_what_a_plan_promises_is_taken_and_what_it_skips_is_not(store: Store, flags: tuple[str, ...], promises: Record) -> None:
    rows = filled(store, 260, seed=11)
    backend, requeue = store.open(OWN), operation(PartitionAction.REQUEUE, *flags)
    failed = {row["id"]: row for row in rows if row["status"] == "failed"}
    keys = [item.key for item in backend.page(EVERYTHING).items if item.key.parts[1] in failed]
    planned = [draft for draft in drafts(backend, keys, requeue) if draft.skipped is None]
    changes = []
    for draft in planned:
        change = Change(draft.unit, (ItemKey.parse(draft.key),), draft.before, ())
        changes.append(change._replace(after=backend.after(change, requeue, NOON, NOON)))
    assert {outcome.kind for outcome in backend.compare_and_set(changes, requeue, WHO)} == {"applied"}
    promised = {change.keys[0].parts[1] for change in changes}
    for id in promised:
        failed[id].update(status="pending", next_run_at=None)
    taken = model.day(rows, NOON, ours=True)
    assert promised <= taken
    assert len(promised) > 15
    predicted = {item.key.parts[1]: item.verdict.will_run_again for item in backend.page(EVERYTHING).items}
    promises("partition_store", predicted, taken)
    assert tried_in_a_day(store, backend) == taken
    assert not {id for id in failed if id not in promised} & taken
