"""The desk: everything a front end sits down to. `__main__` lays it; `cli` and `ui` only use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from console.core.faults import Fault, UsageFault
from console.core.person import Whence, Who
from console.core.text import closest

NOBODY = Who(-1, "nobody")
NOWHERE = Whence("", "", "", 0, "")

if TYPE_CHECKING:
    from console.core.backend import Backend
    from console.core.limits import Limits
    from console.core.operations import Operations
    from console.core.ports import Book, Clock, Stop


class Unavailable(NamedTuple):
    """A configured backend that could not be opened; shown in its place, so the others work on."""

    name: str
    plugin: str
    fault: Fault


@dataclass(frozen=True, slots=True)
class Desk:
    """Backends in config order, the clock, and what the config says to a front end."""

    entries: Sequence[Backend | Unavailable]
    clock: Clock
    stop: Stop
    limits: Limits
    read_only: bool = False
    operator: str = ""
    config: str = ""
    """Where the configuration came from, or would be looked for, to show."""
    refresh: timedelta = timedelta(seconds=5)
    views: Mapping[str, str] = field(default_factory=dict)
    runbooks: Mapping[str, str] = field(default_factory=dict)
    keymap: Mapping[str, str] = field(default_factory=dict)
    theme: str | None = None
    book: Book | None = None
    """The trail; None for a command that does not need it, or where there is none to read."""
    operations: Operations | None = None
    """The one door to a write; None for a command that only reads."""
    who: Who = NOBODY
    whence: Whence = NOWHERE
    anchor: str | None = None
    """Where anchors of the trail go, as a path or `syslog`."""

    @property
    def anchor_file(self) -> str | None:
        """Where they can be read again."""
        return self.anchor if self.anchor != "syslog" else None

    @property
    def backends(self) -> tuple[Backend, ...]:
        return tuple(entry for entry in self.entries if not isinstance(entry, Unavailable))

    @property
    def unavailable(self) -> tuple[Unavailable, ...]:
        return tuple(entry for entry in self.entries if isinstance(entry, Unavailable))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)

    def backend(self, name: str) -> Backend:
        """The backend of that name; raises what it could not be opened for, or a UsageFault."""
        for entry in self.entries:
            if entry.name == name:
                if isinstance(entry, Unavailable):
                    raise entry.fault
                return entry
        raise UsageFault(f"there is no backend {name!r}", fix=self.suggestion(name))

    def suggestion(self, name: str) -> str:
        """What a mistyped backend name was probably meant to be."""
        close = closest(name, self.names)
        return f"Did you mean {close}?" if close else f"Configured: {', '.join(self.names) or 'none'}."

    def runbook(self, error: str) -> str | None:
        """The page that says what to do about an error, by the first configured text found in it."""
        lowered = error.lower()
        return next((page for text, page in self.runbooks.items() if text.lower() in lowered), None)

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        if self.book is not None:
            self.book.close()
