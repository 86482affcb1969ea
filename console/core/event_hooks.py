"""Calls the configured hooks when an override ends, stops or is taken over, and when its watch ends."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from console.core.alerts import Hook
from console.core.events import OverrideEvent
from console.core.ports import Clock
from console.core.text import instant


class EventHooks:
    """A listener of `Operations`. Each hook has a thread, so that one that hangs delays neither others nor a write."""

    def __init__(self, hooks: Sequence[Hook], clock: Clock, report: Callable[[str], None]) -> None:
        self.report = report
        """Called with the reason when a hook has failed, in the thread of the hook."""
        self._clock = clock
        self._hooks = [(hook, ThreadPoolExecutor(1, f"hook {hook.name}")) for hook in hooks]

    def __call__(self, event: OverrideEvent) -> None:
        text = self._payload(event)
        for hook, thread in self._hooks:
            thread.submit(self._call, hook, text)

    def _payload(self, event: OverrideEvent) -> str:
        """In the form in which hooks get alerts, so that one program can read both."""
        at = instant(self._clock.now())
        alert = {
            "rule": event.kind.value, "kind": event.kind.value, "subject": event.override_id, "text": event.text,
            "since": at, "override": event.override_id, "bad": event.bad,
        }
        return json.dumps({"at": at, "alerts": [alert], "count": 1})

    def _call(self, hook: Hook, text: str) -> None:
        if why := hook.call(text):
            self.report(f"Hook {hook.name} ({hook.place}): {why}")

    def close(self) -> None:
        """Wait for the hooks, each of which has a time-out."""
        for _, thread in self._hooks:
            thread.shutdown()
