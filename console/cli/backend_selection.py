"""The backends a command is about, and the exit code for those that did not answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from console.cli.render import note_fault
from console.core.backend import Backend
from console.core.faults import ConfigFault, Fault, QueryFault
from console.core.query import Field, Filter
from console.core.session import Session

DONE, SOME_FAILED, USAGE, NONE_ANSWERED = 0, 1, 2, 4


class BackendSelection:
    """The backends selected by `--backend` and by the filter's `backend:` terms."""

    def __init__(self, session: Session, names: Sequence[str] | None, filter: Filter) -> None:
        if not session.entries:
            raise ConfigFault("No backend is configured", where=session.config, fix="Add one, or try `retriage demo`.")
        for name in names or ():
            if name not in session.names:
                session.backend(name)
        _require_known(session, filter)
        selected = [
            name for name in session.names if (not names or name in names) and filter.for_backend(name) is not None
        ]
        self.backends: tuple[Backend, ...] = tuple(b for b in session.backends if b.name in selected)
        self.faults: dict[str, Fault] = {e.name: e.fault for e in session.unavailable if e.name in selected}

    def report(self, faults: Mapping[str, Fault], answered: Collection[str]) -> int:
        """Print the faults of the backends that did not answer, and return the exit code."""
        failed = {**self.faults, **faults}
        for name, fault in failed.items():
            note_fault(fault, name)
        return exit_code(failed.values(), bool(answered))


def exit_code(faults: Collection[Fault], answered: bool) -> int:
    """The first that applies: a mistake in the config, no backend answered, some did not, done."""
    if any(fault.exit_code == USAGE for fault in faults):
        return USAGE
    if faults:
        return SOME_FAILED if answered else NONE_ANSWERED
    return DONE


def _require_known(session: Session, filter: Filter) -> None:
    for term in filter.terms_for(Field.BACKEND):
        for value in term.values:
            if isinstance(value, str) and value not in session.names:
                raise QueryFault(f"No backend named '{value}'", column=term.column, fix=session.suggestion(value))
