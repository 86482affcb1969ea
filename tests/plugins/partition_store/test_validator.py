"""The validator's transitions, also when it is killed between any two steps."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from console.core.backend import Operation
from console.core.item import ItemKey
from plugins.partition_store.actions import PartitionAction
from plugins.partition_store.engine import Validator
from plugins.partition_store.sink import METADATA, PAYLOAD
from tests.plugins.partition_store.stores import Store, act, part, run_id

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


@pytest.mark.parametrize(("said", "kept"), [("bad \udce9", "bad \\udce9"), ("bad \0 x", "bad \\x00 x")])
def test_whatever_a_handler_says_is_kept(store: Store, said: str, kept: str) -> None:
    store.put(P, "pending")
    store.run(P, run_id(1))

    def refuse(*_: Any) -> None:
        raise ValueError(said)

    assert store.validate(store.open(), handler=refuse) == 1
    assert store.row(P)["error_message"] == f"REJECTED: {kept}"


def test_a_version_that_is_no_text_is_kept(store: Store) -> None:
    store.put(P, "pending")
    store.run(P, run_id(1))
    metadata = store.folder(P, run_id(1)) / METADATA
    metadata.write_text(metadata.read_text().replace('"v1"', '"\\udce9\\u0000"'))
    assert store.validate(store.open()) == 1
    assert store.row(P)["schema_version"] == "\\udce9\\x00"


def test_an_attempt_that_the_database_refuses_ends_nothing(store: Store) -> None:
    for day in (8, 9):
        store.put(part(day), "pending")
        store.run(part(day), run_id(1, day))
    store.sql("CREATE UNIQUE INDEX once ON partition_state (schema_version)")
    assert store.validate(store.open()) == 1
    assert [store.row(part(day))["status"] for day in (9, 8)] == ["success", "pending"]


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
    act(backend, KEY, Operation(PartitionAction.REPROCESS))
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


POINTS = ("_verify", "_ask_handler", "_conclude", "after")


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
    if point == "_ask_handler" and not good:
        assert state(store)[1] == 2, "a run with a wrong count never gets as far as the handler"
        return
    decided = ("success", 2, run_id(1)) if good else ("failed", 2, None)
    assert state(store) == (decided if point == "after" else ("pending", 1, None))
    store.validate(store.open())
    assert state(store)[:2] == ("success" if good else "failed", 2)


def test_the_worker_loop_stops(store: Store) -> None:
    from console.testing import StopFlag

    store.put(P, "pending")
    store.run(P, run_id(1))
    backend = store.open()
    assert backend.run(lambda *_: None, store.clock, StopFlag(after_looks=4), lambda _: None) == 1
