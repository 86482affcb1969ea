"""One question put to several backends: who is meant, who answered, and the exit code that makes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from console.cli.render import note_fault
from console.core.backend import Backend
from console.core.desk import Desk
from console.core.faults import ConfigFault, Fault, QueryFault
from console.core.query import Field, Filter

USAGE, NONE_ANSWERED, SOME_MISSING, DONE = 2, 4, 1, 0


class Round:
    """The backends meant by `--backend` and by the filter's `backend:` terms."""

    def __init__(self, desk: Desk, names: Sequence[str] | None, filter: Filter) -> None:
        if not desk.entries:
            raise ConfigFault("no backend is configured", where=desk.config, fix="`retriage demo` shows how it looks.")
        for name in names or ():
            if name not in desk.names:
                desk.backend(name)
        _require_known(desk, filter)
        wanted = [
            name for name in desk.names if (not names or name in names) and filter.for_backend(name) is not None
        ]
        self.backends: tuple[Backend, ...] = tuple(b for b in desk.backends if b.name in wanted)
        self.faults: dict[str, Fault] = {e.name: e.fault for e in desk.unavailable if e.name in wanted}

    def conclude(self, faults: Mapping[str, Fault], answered: Collection[str]) -> int:
        """Name on stderr what did not answer; the exit code."""
        missing = {**self.faults, **faults}
        for name, fault in missing.items():
            note_fault(fault, name)
        return exit_code(missing.values(), bool(answered))


def exit_code(faults: Collection[Fault], answered: bool) -> int:
    """The first that applies: a mistake in the config, nobody answered, somebody did not, done."""
    if any(fault.exit_code == USAGE for fault in faults):
        return USAGE
    if faults:
        return SOME_MISSING if answered else NONE_ANSWERED
    return DONE


def _require_known(desk: Desk, filter: Filter) -> None:
    for term in filter.terms_for(Field.BACKEND):
        for value in term.values:
            if isinstance(value, str) and value not in desk.names:
                raise QueryFault(f"there is no backend {value}", column=term.column, fix=desk.suggestion(value))
