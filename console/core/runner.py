"""Carries out overrides that have no process of their own: detached ones, and those whose process is gone.

Several runners may share one trail. The leases decide which of them has an override, and no two write to one backend.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from threading import Thread
from time import monotonic
from typing import NamedTuple

from console.core.confirm import Origin, Who
from console.core.faults import Fault, LeaseLost, NotAllowed, OverrideRunning
from console.core.operations import Operations
from console.core.override import Override, OverrideState, outcome_summary
from console.core.ports import Clock, Stop

MOST_AT_ONCE = 8
_NAP = 0.5
_LOOK = 2.0
"""Seconds between two looks for work."""
_FIRST_RETRY, _LAST_RETRY = 4.0, 300.0
"""Seconds until an override that could not be continued is tried again; doubled each time."""
TAKEN_OVER_WITHIN = timedelta(hours=24)
"""An older override that was not confirmed for a runner is left alone: nobody expects it to go on."""


@dataclass(slots=True)
class _Retry:
    """When an override is tried again."""

    at: float
    wait: float


class _Carried(NamedTuple):
    """An override that this runner carries out."""

    thread: Thread
    places: set[str]


@dataclass
class Runner:
    """Looks for overrides without a living process, and carries each out in a thread of its own."""

    operations: Operations
    clock: Clock
    who: Who
    origin: Origin
    stop: Stop
    report: Callable[[str], None]
    take_over: bool = False
    """Also continue overrides that were not detached, when their process or terminal is gone."""
    _carried: dict[str, _Carried] = field(default_factory=dict)
    _watches: list[Thread] = field(default_factory=list)
    _retries: dict[str, _Retry] = field(default_factory=dict)
    _skipped: set[str] = field(default_factory=set)
    _refused: set[str] = field(default_factory=set)

    def run(self, *, once: bool = False) -> None:
        """Work until a stop is requested; with `once`, until nothing is left to do. Ends when every thread has."""
        while not self.stop.requested:
            waiting = self.look(watch=not once)
            if once and not waiting and not self._carried:
                break
            self._wait()
        for thread in (*(one.thread for one in self._carried.values()), *self._watches):
            thread.join()

    def _wait(self) -> None:
        """Wait for the next look: shortly, or until a thread has ended or a stop is requested."""
        left = _LOOK
        while left > 0 and not self.stop.requested and not self._one_ended():
            self.clock.sleep(min(left, _NAP))
            left -= _NAP

    def _one_ended(self) -> bool:
        return not all(one.thread.is_alive() for one in self._carried.values())

    def look(self, *, watch: bool = True) -> int:
        """Begin with what is waiting, oldest first. Returns how many overrides were never tried yet and still wait."""
        self._carried = {name: one for name, one in self._carried.items() if one.thread.is_alive()}
        self._watches = [thread for thread in self._watches if thread.is_alive()]
        waiting = 0
        for override in self._wanted():
            name = override.override_id
            if name in self._carried:
                continue
            places = {str(part["place"]) for part in override.confirmed.get("parts", ())}
            busy = any(places & one.places for one in self._carried.values())
            retry = self._retries.get(name)
            if busy or len(self._carried) >= MOST_AT_ONCE or (retry is not None and monotonic() < retry.at):
                waiting += retry is None
                continue
            thread = Thread(target=self._carry, args=(override, watch), name=f"override {name}")
            self._carried[name] = _Carried(thread, places)
            thread.start()
        return waiting

    def _wanted(self) -> list[Override]:
        try:
            found = self.operations.trail.unattended()
        except Fault as fault:  # the trail may be back at the next look
            self.report(str(fault))
            return []
        return [override for override in found if self._is_mine(override)]

    def _is_mine(self, override: Override) -> bool:
        if override.override_id in self._refused:
            return False
        if override.state is not OverrideState.QUEUED and not override.detached:
            if not self.take_over or self.clock.now() - override.started_at > TAKEN_OVER_WITHIN:
                return False
        elif override.state is OverrideState.STOPPED:
            return False  # a runner queues it again when it is stopped; so a person has stopped this one
        missing = {
            part["backend"] for part in override.confirmed.get("parts", ())
            if part["changes"] and part["backend"] not in self.operations.backends
        }
        if missing and override.override_id not in self._skipped:
            self._skipped.add(override.override_id)
            names = ", ".join(sorted(missing))
            self.report(f"Override {override.override_id} is left to another runner: no {names} here.")
        return not missing

    def _carry(self, override: Override, watch: bool) -> None:
        name = override.override_id
        try:
            ended = self.operations.resume(name, self.who, self.origin, self.stop, as_runner=True)
        except OverrideRunning:
            self._try_again(name, _FIRST_RETRY)  # its backend is busy, or another runner was faster
            return
        except LeaseLost:
            self.report(f"Override {name} was taken over by another process.")
            return
        except NotAllowed as fault:  # refused on record; trying again would refuse again
            self.report(f"Override {name}: {fault}")
            self._refused.add(name)
            return
        except Fault as fault:
            self.report(f"Override {name}: {fault}")
            self._try_again(name)
            return
        except Exception as error:  # noqa: BLE001  one override must not end the others
            self.report(f"Override {name}: internal error ({type(error).__name__})")
            self._try_again(name)
            return
        if ended.state is OverrideState.QUEUED and not self.stop.requested:  # its backend could not be read
            self._try_again(name)
        else:
            self._retries.pop(name, None)
        summary = outcome_summary(ended.counts, ended.action)
        self.report(f"Override {name} {ended.state.value}: {summary}. {ended.note}".rstrip())
        if watch and ended.state in (OverrideState.FINISHED, OverrideState.STOPPED):
            thread = Thread(target=self._watch, args=(name,), name=f"watch {name}", daemon=True)
            self._watches.append(thread)
            thread.start()

    def _try_again(self, name: str, wait: float | None = None) -> None:
        before = self._retries.get(name)
        longer = _FIRST_RETRY if before is None else min(before.wait * 2, _LAST_RETRY)
        self._retries[name] = _Retry(monotonic() + (wait or longer), wait or longer)

    def _watch(self, name: str) -> None:
        """Follow the items, and record their results."""
        try:
            progress = self.operations.follow(self.operations.watch(name), self.stop)
        except Fault as fault:
            self.report(f"Override {name} could not be watched: {fault}")
            return
        self.report(f"Override {name}: {progress.summary()}")
