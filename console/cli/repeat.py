"""`--watch`: reads and prints again and again, within the reading budget of each system."""

from __future__ import annotations

import signal
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from time import monotonic
from types import FrameType

from console.cli.backend_selection import DONE
from console.cli.render import Screen, can_redraw, chosen_format, flush, note_fault
from console.core.budget import HOLD_LIMIT, ReadCosts, ReadingBudget, metered
from console.core.faults import BackendFault, NoSuchItem, TrailUnavailable, UsageFault
from console.core.session import Session
from console.core.text import instant

_QUESTION = "watch"
"""The question of the reading budget."""
_NAP = 1.0
_MAY_PASS = (BackendFault, NoSuchItem, TrailUnavailable)
"""Faults that do not end a watch. In the first round they do, as without `--watch`."""


def repeated(
    args: Namespace, session: Session, read: Callable[[ReadCosts], int], steady: Callable[[], float] = monotonic
) -> int:
    """Read and print once, or with `--watch` until Ctrl-C. `read` returns the exit code and adds what it cost."""
    if not args.watch:
        return read(ReadCosts())
    _require_repeatable(args, session)
    with suppress(KeyboardInterrupt):
        return _Watch(session, read, steady, args.format).run()
    return DONE


def _require_repeatable(args: Namespace, session: Session) -> None:
    if args.format == "csv":
        raise UsageFault("--watch cannot print CSV, which has one header", fix="Use --format jsonl.")
    if getattr(args, "at", None) is not None:
        raise UsageFault("--watch cannot be used with --at", fix="The past does not change.")
    if not session.load:
        raise UsageFault("--watch needs a `console.load` above 0", fix="With 0, systems are read only on request.")


class _Watch:
    """The rounds. The next one begins when the budget of every system that was read allows it."""

    def __init__(
        self, session: Session, read: Callable[[ReadCosts], int], steady: Callable[[], float], wanted: str | None
    ) -> None:
        self._session = session
        self._read = read
        self._steady = steady
        self._screen = Screen() if chosen_format(wanted) == "table" and can_redraw() else None
        self._interrupted = False
        self._budgets = {} if session.operations is None else session.operations.budgets

    def run(self) -> int:
        """The first round is a person's request. The later ones are not: they do not keep writers waiting."""
        with self._interruptible():
            code, costs = self._round(self._read, ReadCosts())
            while costs.meters and not self._session.stop.requested:
                code, costs = self._round(self._read_again, ReadCosts(HOLD_LIMIT))
        return code

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Remember Ctrl-C: SQLite makes a failed statement of an exception that comes while it works."""
        previous = signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, previous)

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._interrupted = True
        raise KeyboardInterrupt

    def _round(self, read: Callable[[ReadCosts], int], costs: ReadCosts) -> tuple[int, ReadCosts]:
        """Read, print, and wait until the next round may begin."""
        at = self._session.clock.now()
        with self._screen.collected() if self._screen is not None else nullcontext():
            code = read(costs)
        wait = self._charged(costs, answered=code == DONE)
        if self._interrupted:
            raise KeyboardInterrupt
        if self._screen is None:
            flush()
        else:
            following = self._session.clock.now() + timedelta(seconds=wait)
            read_at, next_at = (instant(time.replace(microsecond=0)) for time in (at, following))
            self._screen.draw(f"Read at {read_at}, next at {next_at}. Ctrl-C ends it.")
        end = self._steady() + wait
        while (rest := end - self._steady()) > 0 and not self._session.stop.requested:
            self._session.clock.sleep(min(rest, _NAP))
        return code, costs

    def _read_again(self, costs: ReadCosts) -> int:
        try:
            return self._read(costs)
        except _MAY_PASS as fault:
            note_fault(fault)
            return fault.exit_code

    def _charged(self, costs: ReadCosts, *, answered: bool) -> float:
        """Charge the budgets with what a round cost; the seconds until the next one."""
        refresh = self._session.refresh.total_seconds()
        wait = refresh
        for name, cost in costs.meters.items():
            budget = self._budgets.setdefault(name, ReadingBudget(self._session.load, refresh))
            if answered:
                with suppress(BackendFault):
                    self._measure_way(name, budget)
            budget.note(_QUESTION, cost, self._steady())
            wait = max(wait, budget.wait(_QUESTION, self._steady()))
        return wait

    def _measure_way(self, name: str, budget: ReadingBudget) -> None:
        """Ask a system for its time. That costs it nothing, so it shows how long the way to it is."""
        with metered() as meter:
            self._session.backend(name).now()
        budget.answered_in(meter.seconds)
