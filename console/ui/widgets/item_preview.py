"""The preview of the item under the cursor, beside the list or below it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, cast

from textual.reactive import reactive
from textual.timer import Timer

from console.core.faults import Fault, ReadTooLong
from console.core.item import Detail, Item, ItemKey
from console.ui import cells, safe
from console.ui.advice import fault_text
from console.ui.cells import Cell
from console.ui.item_text import ItemText
from console.ui.widgets.text_pane import Line, Panel
from console.ui.worker_errors import ReportsWorkerErrors

if TYPE_CHECKING:
    from console.ui.app import Console

_SETTLED = 0.25
"""Seconds the cursor has to stay on an item before its details are read."""
_KEPT = 40
_PREVIEW = "preview"
"""The question of the reading budget."""
_ATTEMPTS = 5


class ItemPreview(ReportsWorkerErrors, Panel):
    """Shows `item` as the list knows it at once, and its attempts when they were read."""

    item: reactive[Item | None] = reactive(None, init=False)
    asked = True
    """A person has moved to the item. Else a refresh has put it there, and its details wait for the budget."""

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._details: OrderedDict[ItemKey, Detail] = OrderedDict()
        self._timer: Timer | None = None
        self._fault: Fault | None = None
        self._begun: ItemKey | None = None
        """The item that was read since it is here. That a person has moved to it is a reason to read it once."""
        self._reading: ItemKey | None = None
        self._forgotten = False
        self._settling = False
        """The timer ends as soon as the cursor has settled: it does not wait for the budget."""

    @property
    def console_app(self) -> Console:
        return cast("Console", self.app)

    def watch_item(self, before: Item | None, item: Item | None) -> None:
        """Another item, or the same one as a refresh has read it again."""
        if before is None or item is None or before.key != item.key:
            self._fault = self._begun = None
            self._settling = False
            self.scroll_home(animate=False)
        self.show_now()
        if self._settling:
            return  # frequent refreshes would put the read off for ever
        if self._timer is not None:
            self._timer.stop()
        if item is None or not self.display or item.key in self._details:
            return
        if self._reading is None or self._is_asked(item.key):  # else the next refresh comes here again
            wait = self._wait(item.key)
            self._settling = wait <= _SETTLED
            self._timer = self.set_timer(max(_SETTLED, wait), self._begin)

    def _is_asked(self, key: ItemKey) -> bool:
        """Whether a person wants the details of this item, and they were not read for that yet."""
        return self._forgotten or (self.asked and self._begun != key)

    def _wait(self, key: ItemKey) -> float:
        if self._is_asked(key) or key.backend not in self.console_app.callers:
            return 0.0
        return self.console_app.callers[key.backend].budget.wait(_PREVIEW, monotonic())

    def forget(self) -> None:
        """A person asks for the items again: their attempts may have changed."""
        self._details.clear()
        self._forgotten = True

    def _begin(self) -> None:
        self._settling = False
        if self.item is None or self.item.key.backend not in self.console_app.callers:
            return
        key = self.item.key
        asked, self._forgotten = self._is_asked(key), False
        self._begun = self._reading = key
        self.start(partial(self._read, key, asked=asked), "preview")

    async def _read(self, key: ItemKey, *, asked: bool) -> None:
        now = self.console_app.session.clock.now
        try:
            caller = self.console_app.callers[key.backend]
            detail = await caller.call(lambda backend: backend.item(key, now()), question=_PREVIEW, asked=asked)
        except ReadTooLong:
            self._reading = None
            return  # nobody has asked, and its writers would have to wait
        except Fault as fault:
            self._reading, self._fault = None, fault
        else:
            self._reading = self._fault = None
            self._details[key] = detail
            while len(self._details) > _KEPT:
                self._details.popitem(last=False)
        if self.item is not None and self.item.key == key:
            self.show_now()

    def show_now(self) -> None:
        """Show the item with its times as of now."""
        lines = tuple(self._lines()) if self.item is not None else ()
        if lines != self.lines:
            self.lines = lines

    def _lines(self) -> Iterator[Line]:
        item = self.item
        assert item is not None
        detail = self._details.get(item.key)
        session = self.console_app.session
        runbook = session.runbook(item.error) if item.error else None
        life = self.console_app.life_of(item.signature) if item.signature else None
        text = ItemText(item, detail, (), session.clock.now(), runbook, life)
        state = cells.condition(item.condition)
        yield [Cell(safe.line(str(item.key)), "accent")]
        yield [Cell(f"{state.text}  ", state.tone), Cell(safe.line(item.verdict.why, 400))]
        yield []
        yield from text.error()
        yield []
        yield from text.facts(all=False)
        if self._fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_text(self._fault), 400), "error")]
        elif detail is not None and detail.attempts:
            yield []
            yield from text.history(_ATTEMPTS)
