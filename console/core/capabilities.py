"""What a plugin can offer beyond reading and requeueing: actions and switches of its own, and what reading costs.

A backend offers them by having the attribute or method of a protocol below. Front ends show what the attached backends
offer; core carries the ids through plans and records without knowing what they mean.

A plugin can also bring a command family (`retriage state …`): an entry point in the group `retriage.commands`, see
`console.cli.commands`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple, Protocol, runtime_checkable

from console.core.backend import Flag


class ActionSpec(NamedTuple):
    """An action of a plugin."""

    id: str
    """Written to plans and records: `mark_terminal`. Must also be in `Abilities.actions`."""
    label: str
    """What a person does: "mark terminal"."""
    done: str
    """What was done to an item: "marked terminal"."""


class SwitchSpec(NamedTuple):
    """A switch of a plan."""

    id: str
    """Written to plans and records: `wake_task`. Must also be in `Abilities.flags`."""
    label: str
    """The name of the switch on a screen: "wake the task"."""
    help: str
    """What it does, as one sentence."""
    adds_items: bool = False
    """Whether a plan may contain items that were not selected, if it is on."""


@runtime_checkable
class OffersActions(Protocol):
    """A backend with actions of its own. They go the way of every requeue: plan, confirmation, trail."""

    offered_actions: tuple[ActionSpec, ...]


@runtime_checkable
class OffersSwitches(Protocol):
    """A backend with switches of its own. `Operation.flags` contains those that are on."""

    offered_switches: tuple[SwitchSpec, ...]


@runtime_checkable
class KnowsCost(Protocol):
    """A backend that knows when a figure is expensive. Then the figure is read only when somebody asks for it."""

    def is_costly(self, now: datetime) -> bool:
        """Whether a histogram, or a page in another order, reads a large table without an index."""


CORE_SWITCHES = (
    SwitchSpec(Flag.INCLUDE_UNRECOVERABLE, "include unrecoverable", "Include items whose error is unrecoverable."),
    SwitchSpec(Flag.RESPECT_BACKOFF, "respect backoff", "Run no item before its policy's backoff is over."),
)
"""The switches that any backend may support, by listing them in its abilities."""


def offered_switches(backends: Iterable[object]) -> dict[str, SwitchSpec]:
    """Every switch by its id: those of core, then those of these backends."""
    own = (spec for backend in backends if isinstance(backend, OffersSwitches) for spec in backend.offered_switches)
    return {spec.id: spec for spec in (*CORE_SWITCHES, *own)}


def offered_actions(backends: Iterable[object]) -> dict[str, ActionSpec]:
    """The actions that these backends offer, by their id."""
    return {
        spec.id: spec
        for backend in backends
        if isinstance(backend, OffersActions)
        for spec in backend.offered_actions
    }
