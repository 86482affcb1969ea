"""What can be done to each system, in words: for `retriage plugins` and the manual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol, assert_never, runtime_checkable

from console.core.backend import Abilities, Action, Attempts, UndoKind

NO = "–"


@runtime_checkable
class NamesSystems(Protocol):
    """A plugin class for several systems, or for one whose abilities depend on its config.

    A plugin class for one system needs nothing but its `abilities`.
    """

    @classmethod
    def systems(cls) -> Mapping[str, Abilities]:
        """The systems that it attaches, by a name with what makes the config choose it, and what it can do to each."""


class SystemRow(NamedTuple):
    """One system, and what Retriage can do to its items."""

    system: str
    read: str
    causes: str
    requeue: str
    discard: str
    undo: str
    pace: str
    watch: str


def systems_of(name: str, plugin: object) -> list[SystemRow]:
    """The systems of a plugin class, each with what can be done to its items."""
    if isinstance(plugin, NamesSystems):
        return [_row(system, abilities) for system, abilities in plugin.systems().items()]
    abilities = getattr(plugin, "abilities", None)
    return [_row(name, abilities if isinstance(abilities, Abilities) else None)]


def _row(system: str, abilities: Abilities | None) -> SystemRow:
    if abilities is None or Action.REQUEUE not in abilities.actions:
        return SystemRow(system, "yes", "yes", NO, NO, NO, NO, NO)
    attempts = [attempts.value for attempts in Attempts if attempts in abilities.attempts]
    requeue = f"attempts {' or '.join(attempts)}"
    pace = "in its rows" if abilities.stores_due_time else "by the override"
    return SystemRow(system, "yes", "yes", requeue, _discard(abilities), _undo(abilities), pace, _watch(abilities))


def _discard(abilities: Abilities) -> str:
    discard = abilities.discard
    if discard is None:
        return NO
    return f"{'deletes' if discard.deletes else 'yes'}{', also terminal' if discard.takes_terminal else ''}"


def _undo(abilities: Abilities) -> str:
    requeue = _undo_word(abilities.undo)
    if abilities.discard is None or abilities.discard.undo is abilities.undo:
        return requeue
    if abilities.undo is UndoKind.NONE:
        return f"{_undo_word(abilities.discard.undo)}, of a discard only"
    return f"{requeue}, not of a discard"


def _undo_word(kind: UndoKind) -> str:
    match kind:
        case UndoKind.EXACT:
            return "exact"
        case UndoKind.COMPENSATING:
            return "by a new entry"
        case UndoKind.NONE:
            return NO
        case _:
            assert_never(kind)


def _watch(abilities: Abilities) -> str:
    how = "by its attempt counter" if abilities.execution_counter is not None else "by its times"
    return how if abilities.deletes_finished is None else f"{how}; gone is recovered"
