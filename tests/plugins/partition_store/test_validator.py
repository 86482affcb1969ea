"""The validator's transitions and the invariants of the store, also under kills and any order of events."""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.core.backend import Action, Flag, Order
from console.core.item import ItemKey
from plugins.partition_store.engine import Validator
from plugins.partition_store.sink import METADATA, PAYLOAD
from tests.plugins.partition_store.stores import Store, act, drafts, part, run_id, tree_hash

P = part()
KEY = ItemKey("parts", P)


def state(store: Store) -> tuple[Any, ...]:
    row = store.row(P)
    assert row is not None
    return row["status"], row["attempt_count"], row["current_run_id"]


@pytest.mark.parametrize("attempts", [None, 0, 4])
def test_pending_to_success(store: Store, attempts: int | None) -> None:
    store.put(P, "pending", attempt_count=attempts, error_message="old")
    store.run(P, run_id(1))
    store.run(P, run_id(2), records=3)
    assert store.validate(store.open()) == 1
    assert state(store) == ("success", (attempts or 0) + 1, run_id(2))
    row = store.row(P)
    assert (row["record_count"], row["schema_version"], row["error_message"]) == (3, "v1", None)
    assert store.validate(store.open()) == 0, "a success is not taken again"


REJECTED: dict[str, Any] = {
    "MISSING_RUN": lambda store: None,
    "COUNT_MISMATCH": lambda store: store.run(P, run_id(1), counted=7),
    "UNSEALED": lambda store: store.run(P, run_id(1), seal=False),
    "UNREADABLE: run": lambda store: (store.run(P, run_id(1)), (store.folder(P, run_id(1)) / PAYLOAD).write_text("{oops\n")),
    "metadata.json is not valid JSON": lambda store: (store.run(P, run_id(1)), (store.folder(P, run_id(1)) / METADATA).write_text("{")),
    "has no record_count": lambda store: (store.run(P, run_id(1)), (store.folder(P, run_id(1)) / METADATA).write_text("{}")),
}


@pytest.mark.parametrize("why", REJECTED)
def test_pending_to_failed_leaves_the_authority(store: Store, why: str) -> None:
    store.put(P, "pending", attempt_count=1, current_run_id=run_id(0), record_count=9)
    REJECTED[why](store)
    store.validate(store.open())
    assert state(store) == ("failed", 2, run_id(0))
    assert why in store.row(P)["error_message"]
    assert store.row(P)["record_count"] == 9
    assert store.validate(store.open()) == 0, "failed to pending is never automatic"


def test_a_handlers_refusal_is_a_failure(store: Store) -> None:
    store.put(P, "pending")
    store.run(P, run_id(1))

    def refuse(*_: Any) -> None:
        raise ValueError("schema drift")

    store.validate(store.open(), handler=refuse)
    assert store.row(P)["error_message"] == "REJECTED: schema drift"


def test_an_unreachable_sink_is_no_attempt(store: Store) -> None:
    store.put(P, "pending")
    backend = store.open()
    store.raw.rename(store.base / "gone")
    assert store.validate(backend) == 0
    assert state(store) == ("pending", 1, None)


def test_the_authority_never_goes_back(store: Store) -> None:
    store.put(P, "pending", current_run_id=run_id(5))
    store.run(P, run_id(3))
    store.validate(store.open())
    assert state(store) == ("success", 2, run_id(5))


@pytest.mark.parametrize("good", [True, False])
def test_reprocessing_a_success(store: Store, good: bool) -> None:
    store.run(P, run_id(1))
    store.put(P, "success", current_run_id=run_id(1), record_count=2)
    backend = store.open()
    act(backend, KEY, Order(Action.REPROCESS))
    assert state(store)[0] == "success", "consumers keep reading"
    store.run(P, run_id(2), counted=None if good else 9)
    assert store.validate(backend) == 1
    assert state(store) == ("success", 2, run_id(2) if good else run_id(1))
    native = dict(backend.item(KEY, store.clock.now()).native)
    assert native["control.request"] is None
    assert bool(native["control.request_error"]) is not good
    assert store.validate(backend) == 0


def test_two_validators_count_one_attempt(store: Store) -> None:
    store.put(P, "pending")
    store.run(P, run_id(1))
    backend = store.open()
    one, two = store.validator(backend), store.validator(backend)
    (first,), (second,) = one.due(), two.due()
    store.clock.tick()
    assert one.attempt(first, lambda _: None)
    assert not two.attempt(second, lambda _: None)
    assert state(store)[1] == 2


POINTS = ("_verify", "_ask", "_conclude", "after")


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("good", [True, False])
def test_killed_anywhere_the_attempt_counts_once_or_not_at_all(store: Store, point: str, good: bool) -> None:
    store.put(P, "pending")
    store.run(P, run_id(1), counted=None if good else 9)
    child = os.fork()
    if child == 0:
        def die(*_: Any, **__: Any) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        if point != "after":
            setattr(Validator, point, die)
        try:
            store.validate(store.open())
        finally:
            die()
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    if point == "_ask" and not good:
        assert state(store)[1] == 2, "a run with a wrong count never gets as far as the handler"
        return
    decided = ("success", 2, run_id(1)) if good else ("failed", 2, None)
    assert state(store) == (decided if point == "after" else ("pending", 1, None))
    store.validate(store.open())
    assert state(store)[:2] == ("success" if good else "failed", 2)


EVENTS = st.lists(
    st.sampled_from(["good run", "bad run", "validate", "retry", "insist", "reprocess", "mark", "clear", "pause", "unpause"]), max_size=25
)
ORDERS = {
    "retry": Order(), "insist": Order(flags=frozenset({Flag.CLEAR_TERMINAL})), "reprocess": Order(Action.REPROCESS),
    "mark": Order(Action.MARK_TERMINAL), "clear": Order(Action.CLEAR_TERMINAL), "pause": Order(Action.PAUSE), "unpause": Order(Action.UNPAUSE),
}


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(EVENTS)
def test_any_order_of_events_keeps_the_invariants(events: list[str]) -> None:
    """Seed §9: raw runs immutable, every attempt counted once, the authority exists and only moves forward."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "etl")
        store.put(P, "pending", attempt_count=0)
        backend = store.open()
        hour, raw = 0, tree_hash(store.raw)
        for event in events:
            status, attempts, current = state(store)
            if event.endswith("run"):
                hour += 1
                store.run(P, run_id(hour % 24, 9 + hour // 24), counted=None if event == "good run" else 99)
                grown = tree_hash(store.raw)
                assert {p: h for p, h in grown.items() if p in raw and p.endswith(("l", "n"))} == {
                    p: h for p, h in raw.items() if p.endswith(("l", "n"))
                }
                raw = grown
            elif event == "validate":
                made = store.validate(backend)
                assert state(store)[1] == attempts + made
            else:
                (draft,) = drafts(backend, [KEY], ORDERS[event], store.clock.tick())
                if draft.blocked is None:
                    act(backend, KEY, ORDERS[event], store.clock.now())
                assert state(store)[1:] == (attempts, current), "an operator never touches counter or authority"
                assert (status, state(store)[0]) in {(status, status), ("failed", "pending")}
            assert tree_hash(store.raw) == raw
            now = state(store)[2]
            assert now is None or store.folder(P, now).is_dir()
            assert current is None or (now is not None and now >= current)
        backend.close()


def test_the_worker_loop_stops(store: Store) -> None:
    from console.testing import Flag as StopFlag

    store.put(P, "pending")
    store.run(P, run_id(1))
    backend = store.open()
    assert backend.run(lambda *_: None, store.clock, StopFlag(after_looks=4), lambda _: None) == 1
