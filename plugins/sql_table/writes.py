"""How each action writes a mapped row: an UPDATE, a DELETE, a function of the queue, or several statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from console.core.backend import Action, Attempts, Operation
from plugins.sql_table.change_schema import Assignment, FunctionCall
from plugins.sql_table.mapping import TableMapping

DISCARD = "discard"


@dataclass(frozen=True, slots=True)
class WriteRule:
    """What one action does to a row."""

    section: str
    """The section of the mapping that says so."""
    set: Mapping[str, Assignment] = field(default_factory=dict)
    function: FunctionCall | None = None
    statements: tuple[str, ...] = ()
    lock: str | None = None
    delete: bool = False

    @property
    def by_update(self) -> bool:
        """Whether it is a plain UPDATE, which an undo can take back exactly."""
        return self.function is None and not self.statements and not self.delete


def write_rules(mapping: TableMapping) -> dict[str, WriteRule]:
    """The rule of each action. An undo writes the former values with an UPDATE."""
    requeue, discard = mapping.requeue, mapping.discard
    if requeue is None:
        return {}
    rules = {
        Action.REQUEUE.value: WriteRule("requeue", requeue.set, requeue.function, requeue.statements, requeue.lock),
        Action.UNDO.value: WriteRule("requeue", lock=requeue.lock),
    }
    if discard is not None:
        rules[Action.DISCARD.value] = WriteRule(
            "discard", discard.set, discard.function, discard.statements, discard.lock or requeue.lock, discard.delete
        )
    return rules


def way_of(operation: Operation) -> str:
    """Which assignments an operation makes: `keep` and `reset` for a requeue, or `discard`."""
    return DISCARD if operation.discards else operation.attempts.value


def ways(mapping: TableMapping) -> dict[str, Mapping[str, Assignment]]:
    """The assignments of each way to write, by column."""
    requeue, discard = mapping.requeue, mapping.discard
    if requeue is None:
        return {}
    keep, reset = requeue.attempts.keep, requeue.attempts.reset
    found: dict[str, Mapping[str, Assignment]] = {
        Attempts.KEEP.value: {**requeue.set, **(keep.set if keep else {})},
        Attempts.RESET.value: {**requeue.set, **(reset.set if reset else {})},
    }
    return found if discard is None else {**found, DISCARD: discard.set}
