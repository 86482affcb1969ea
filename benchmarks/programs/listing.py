"""The triage list alone on a large queue, opened as the console opens: its driver is loaded behind the first frame, and
until then it shows what somebody sent ahead has read."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from textual.app import App, ComposeResult

from benchmarks.opening import NAME, open_queue
from console.core.query import Filter, Sort
from console.ui.foretold import Ahead, Foretold
from console.ui.lanes import Lanes, off_loop
from console.ui.widgets.item_list import ItemList, Question


class ListApp(App[None]):
    """Nothing but the list."""

    def __init__(self, path: Path, ahead: Ahead | None = None) -> None:
        super().__init__()
        self._path = path
        self._foretold = Foretold(ahead, [NAME], lambda _: None)

    def compose(self) -> ComposeResult:
        yield ItemList(self._foretold.lanes, lambda: datetime.now(UTC))

    def on_mount(self) -> None:
        self._foretold.listen()
        self.call_after_refresh(self.run_worker, self._opened)

    async def _opened(self) -> None:
        table = self.query_one(ItemList)
        if self._foretold.lanes:
            table.question = Question(Filter(), Sort())
        await self._foretold.heard_out()
        queue = await off_loop(lambda: open_queue(self._path))
        self._foretold.close()
        table.reseat(Lanes((queue,), 60))
        if table.question is None:
            table.question = Question(Filter(), Sort())
        table.focus()
