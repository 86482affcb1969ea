"""Hooks are called when an override or its watch ends; one that hangs or fails delays nothing."""

from __future__ import annotations

import json
from threading import Event, Semaphore

from console.core.event_hooks import EventHooks
from console.core.events import EventKind, OverrideEvent
from console.testing import FrozenClock
from tests.patience import PATIENCE

ENDED = OverrideEvent(EventKind.FINISHED, "o1", "Override o1 finished: 2 requeued")
STOPPED = OverrideEvent(EventKind.STOPPED, "o1", "Override o1 stopped: nothing was changed", bad=True)


class Recording:
    """A hook that keeps what it gets, as soon as it may."""

    place = "nowhere"

    def __init__(self, name: str = "chat", fault: str = "") -> None:
        self.name, self.fault = name, fault
        self.may = Event()
        self.got: list[dict[str, object]] = []
        self.was_called = Semaphore(0)

    def call(self, payload: str) -> str:
        assert self.may.wait(PATIENCE)
        self.got.append(json.loads(payload))
        self.was_called.release()
        return self.fault


def test_a_hook_gets_every_event_once_in_order_in_the_form_of_an_alert() -> None:
    hook, failed = Recording(), list[str]()
    hook.may.set()
    hooks = EventHooks([hook], FrozenClock(), failed.append)
    for event in (ENDED, STOPPED):
        hooks(event)
    hooks.close()
    received = [alert for call in hook.got for alert in call["alerts"]]  # type: ignore[attr-defined]
    assert [(alert["kind"], alert["override"], alert["bad"]) for alert in received] == [
        ("override_finished", "o1", False), ("override_stopped", "o1", True),
    ]
    assert received[1]["text"] == STOPPED.text
    assert {"rule", "kind", "subject", "text", "since"} <= received[0].keys()
    assert [call["count"] for call in hook.got] == [1, 1]
    assert not failed


def test_one_that_hangs_delays_neither_the_event_nor_the_others() -> None:
    hangs, well = Recording("slow"), Recording("fast")
    well.may.set()
    hooks = EventHooks([hangs, well], FrozenClock(), lambda _: None)
    hooks(ENDED)
    hooks(STOPPED)
    assert all(well.was_called.acquire(timeout=PATIENCE) for _ in range(2))
    assert not hangs.got
    hangs.may.set()
    hooks.close()
    assert len(hangs.got) == len(well.got) == 2


def test_a_failure_is_reported() -> None:
    hook, failed = Recording(fault="ended with code 1: no line"), list[str]()
    hook.may.set()
    hooks = EventHooks([hook], FrozenClock(), failed.append)
    hooks(ENDED)
    hooks.close()
    assert failed == ["Hook chat (nowhere): ended with code 1: no line"]
