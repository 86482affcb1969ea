"""What somebody sent ahead has read of the backends, while none of them is open here yet.

It is shown and nothing else: no key reaches it, and whatever the console then reads itself takes its place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, cast

from console.core.faults import BackendFault
from console.core.query import Filter, Page
from console.ui.lanes import Lanes

if TYPE_CHECKING:
    from datetime import datetime

    from console.core.backend import Backend, Count, PageRequest
    from console.core.item import Condition

    Counts = Mapping[Condition, Count]

_HEARD_OUT = 0.2
"""Seconds after the first frame in which nothing is loaded here: one Python process cannot load drivers and paint what
it hears at once."""
PATIENCE = 60.0
"""Seconds an answer may be on its way: whoever opens the backend meanwhile takes over long before."""


class Ahead(Protocol):
    """Somebody who reads while the console is still being loaded."""

    def fileno(self) -> int:
        """What can be read from when it has something to say."""

    def heard(self) -> list[tuple[str, Counts | Page]] | None:
        """Backends by name, with their counts or the first page of what needs eyes; None when no more will come."""

    def close(self) -> None: ...


class Unheard(BackendFault):
    """nothing is known of it until it is open here"""


class Told:
    """Stands in a lane for the backend of this name, and answers with what was heard of it, once it was."""

    sorts = frozenset[Any]()

    def __init__(self, name: str) -> None:
        self.name = name
        self._counts: Future[Counts] = Future()
        self._first: Future[Page] = Future()
        self._unheard: Future[Any] = Future()

    def counts(self, filter: Filter, now: datetime) -> Counts:  # noqa: ARG002  those that were told
        return (self._unheard if filter.terms else self._counts).result()

    def page(self, request: PageRequest) -> Page:
        other = request.filter.terms or request.after is not None or request.backward
        return (self._unheard if other else self._first).result()

    def hear(self, what: Counts | Page) -> None:
        told: Future[Any] = self._first if isinstance(what, Page) else self._counts
        if not told.done():
            told.set_result(what)

    def hear_no_more(self) -> None:
        """Whoever still waits here waits for the backend itself."""
        for told in (self._counts, self._first, self._unheard):
            if not told.done():
                told.set_exception(Unheard(where=self.name))


class Foretold:
    """All that is heard, from the first frame on until `close`. `changed` is called with the name of the backend."""

    def __init__(self, ahead: Ahead | None, names: Sequence[str], changed: Callable[[str], None]) -> None:
        self._ahead = ahead
        self._changed = changed
        self._told = {name: Told(name) for name in names} if ahead is not None else {}
        self.counts: dict[str, Counts] = {}
        """They are shown until the console has counted by itself."""
        self.lanes = Lanes([cast("Backend", told) for told in self._told.values()], PATIENCE)
        self._over = asyncio.Event()

    def listen(self) -> None:
        if self._ahead is not None:
            asyncio.get_running_loop().add_reader(self._ahead, self._hear, self._ahead)

    def _hear(self, ahead: Ahead) -> None:
        heard = ahead.heard()
        if heard is None:
            self.close()
        for name, what in heard or ():
            if name in self._told:
                self._told[name].hear(what)
            if not isinstance(what, Page):
                self.counts[name] = what
                self._changed(name)

    async def heard_out(self) -> None:
        """Until all was said, or for a moment: who is slow is not waited for."""
        if self._ahead is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(_HEARD_OUT):
                    await self._over.wait()

    def close(self) -> None:
        """No more will be said, or none of it is wanted."""
        self._over.set()
        if self._ahead is not None:
            asyncio.get_running_loop().remove_reader(self._ahead)
            self._ahead.close()
            self._ahead = None
        for told in self._told.values():
            told.hear_no_more()
