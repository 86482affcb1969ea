"""What a plugin can offer beyond reading, requeue and discard: actions and switches of its own, and what reading costs.

A backend offers them by having the attribute or method of a protocol below. Front ends show what the attached backends
offer; core carries the ids through plans and records without knowing what they mean.

A plugin can also bring a command family (`retriage state …`): an entry point in the group `retriage.commands`, see
`console.cli.adder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from console.core.backend import Action, Count, Flag, Image
from console.core.item import ItemKey


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
    actions: tuple[str, ...] = (Action.REQUEUE,)
    """The actions that it is a switch of."""


DISCARD_AS = "as_"
"""The prefix of the switches that say how an item is discarded, where a system has several ways. Exactly one
of them must be on. `as_resolved` is `--as resolved` on the command line."""


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
    """A backend that knows when a figure is expensive. Then the figure is read only when somebody asks for it, and new
    failures are not looked for between two passes over all of them."""

    def is_costly(self, now: datetime) -> bool:
        """Whether a histogram, or a page in another order, reads a large table without an index."""


@runtime_checkable
class KeepsIndex(Protocol):
    """A backend that reads so many things one by one that it keeps an index of them between processes."""

    def keep_index(self, folder: Path) -> None:
        """Called once after it was opened. The folder may not exist; whatever is found in it may be damaged. A backend
        that was opened read-only may use an index, but writes nothing."""


@runtime_checkable
class KnowsExpiry(Protocol):
    """A backend whose system deletes failed items after a time. The Overview warns of that."""

    def expiring(self, now: datetime, within: timedelta) -> Count | None:
        """How many items that need attention are deleted within this time. None if the system deletes none, or if
        counting them would read a large table without an index."""


@runtime_checkable
class NamesColumns(Protocol):
    """A backend that names the values of its images. Its plans show `attempts 4 → 0` instead of `4 → 0`."""

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:
        """The values of one item in an image of its unit, by column. Asked for any image that the backend made, but
        never for `GONE`."""


@runtime_checkable
class KnowsOrder(Protocol):
    """A backend that knows what its own order is by. Without this, it is taken to be by time."""

    def orders_by_time(self) -> bool:
        """Whether its own order, within a condition, is by time. If not, the default list sorts it by time instead."""


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


class FoundQueue(NamedTuple):
    """A queue behind a URL, as `retriage attach` offers it."""

    name: str
    """A name for the backend: lower case letters, digits and dashes."""
    system: str
    """What it is, for a person: "River, table river_job"."""
    options: Mapping[str, Any]
    """The keys of its config section besides `plugin`, as YAML can hold them. The URL stands in it as it was given: the
    config gets it as the person wrote it, with `${NAME}` for a password."""
    note: str = ""
    """What the person should know, as a sentence."""
    guessed: bool = False
    """Whether names made it look like a queue. Such a guess is dropped where a system is recognised."""


@runtime_checkable
class Discovers(Protocol):
    """A plugin that finds its queues behind a URL. It is asked before anything is configured, and only reads."""

    schemes: tuple[str, ...]
    """The URLs that it knows: `postgresql`, `redis`; `file` for a path."""

    def discover(self, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        """The queues of this plugin's kind; empty if there are none. Raises BackendFault if it cannot be reached."""
