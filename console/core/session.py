"""The session: everything a front end works with. `__main__` builds it; `cli` and `ui` use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from console.core.access import AccessRules
from console.core.budget import SHARE
from console.core.capabilities import ActionSpec, SwitchSpec, offered_actions, offered_switches
from console.core.confirm import Origin, Who
from console.core.faults import Fault, UsageFault
from console.core.text import closest

NOBODY = Who(-1, "nobody")
NOWHERE = Origin("", "", "", 0, "")

if TYPE_CHECKING:
    from pathlib import Path

    from console.core.alert_rules import Rule
    from console.core.alerts import Hook
    from console.core.approvals import Approvals
    from console.core.backend import Backend
    from console.core.budget import ReadingBudget
    from console.core.cause_life import CauseStates
    from console.core.confirm import Limits
    from console.core.event_hooks import EventHooks
    from console.core.history import History, Recorder, Snapshot
    from console.core.operations import Operations
    from console.core.ports import Clock, Stop, Trail


class Unavailable(NamedTuple):
    """A configured backend that could not be opened. It is shown with its fault; the others keep working."""

    name: str
    plugin: str
    fault: Fault


@dataclass(frozen=True, slots=True)
class Session:
    """Backends in config order, the clock, and the options of the config that front ends need."""

    entries: Sequence[Backend | Unavailable]
    clock: Clock
    stop: Stop
    limits: Limits
    read_only: bool = False
    operator: str = ""
    config: str = ""
    """The path of the config file, or where it would be."""
    refresh: timedelta = timedelta(seconds=5)
    views: Mapping[str, str] = field(default_factory=dict)
    runbooks: Mapping[str, str] = field(default_factory=dict)
    keymap: Mapping[str, str] = field(default_factory=dict)
    theme: str | None = None
    notify: bool = True
    """Whether the end of an override is also a desktop notification."""
    trail: Trail | None = None
    """None for a command that does not need the trail, or where there is none to read."""
    operations: Operations | None = None
    """The only way to write; None for a command that only reads."""
    approvals: Approvals | None = None
    """Proposals, and what this person may decide about them; None without a trail."""
    rules: AccessRules = field(default_factory=AccessRules)
    """Who may do what, by the config."""
    who: Who = NOBODY
    origin: Origin = NOWHERE
    anchor: str | None = None
    """Where anchors of the trail go: a path, or `syslog`."""
    load: float = SHARE
    """The share of the time of each watched system that reading may take when nobody asks."""
    read_only_backends: frozenset[str] = frozenset()
    """Backends that the config makes read-only."""
    views_file: Path | None = None
    """Where the console saves views; None for the state folder."""
    causes: CauseStates | None = None
    """The states of causes; None without a trail."""
    history: History | None = None
    """The recorded past. It may be empty."""
    recorder: Callable[[Mapping[str, ReadingBudget] | None], Recorder] | None = None
    """Makes a recorder that shares these reading budgets. None in read-only mode, where nothing is recorded."""
    record_history: bool = True
    """Whether the open console records."""
    sample: Callable[[], Snapshot] | None = None
    """Reads all systems now, at most 50 000 errors in all. Writes nothing."""
    repeated_sample: Callable[[], Callable[[], Snapshot]] | None = None
    """Makes a function that does the same again and again, within the reading budget. Writes nothing."""
    alerting: Callable[[], tuple[Sequence[Rule], Sequence[Hook]]] | None = None
    """The configured rules and hooks of alerts."""
    event_hooks: EventHooks | None = None
    """Calls hooks when an override or its watch ends; None where none are configured for that."""

    @property
    def anchor_file(self) -> str | None:
        """The file from which anchors can be read back; None for syslog."""
        return self.anchor if self.anchor != "syslog" else None

    @property
    def backends(self) -> tuple[Backend, ...]:
        return tuple(entry for entry in self.entries if not isinstance(entry, Unavailable))

    @property
    def actions(self) -> Mapping[str, ActionSpec]:
        """The plugins' own actions, by id."""
        return offered_actions(self.backends)

    @property
    def switches(self) -> Mapping[str, SwitchSpec]:
        """The switches of a plan, by id: those of core and the plugins' own."""
        return offered_switches(self.backends)

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, Unavailable))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    def backend(self, name: str) -> Backend:
        """The backend with this name. Raises the fault of one that could not be opened, or a UsageFault."""
        for entry in self.entries:
            if entry.name == name:
                if isinstance(entry, Unavailable):
                    raise entry.fault
                return entry
        raise UsageFault(f"No backend named {name!r}", fix=self.suggestion(name))

    def suggestion(self, name: str) -> str:
        """What to write instead of an unknown backend name."""
        close = closest(name, self.names)
        return f"Did you mean {close!r}?" if close else f"Configured: {', '.join(self.names) or 'none'}."

    def runbook(self, error: str) -> str | None:
        """The link of the first configured runbook whose text occurs in the error."""
        lowered = error.lower()
        return next((page for text, page in self.runbooks.items() if text.lower() in lowered), None)

    def close(self) -> None:
        if self.event_hooks is not None:
            self.event_hooks.close()
        for backend in self.backends:
            backend.close()
        if self.trail is not None:
            self.trail.close()
        if self.history is not None:
            self.history.close()
