"""The failures list alone on a large queue, opened as in the console: the driver is loaded behind the first frame."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from textual.app import App, ComposeResult

from benchmarks.opening import open_queue
from console.core.query import Filter, Sort
from console.ui.backend_calls import BackendCallers, off_loop
from console.ui.widgets.item_list import ItemList, Question


class ListApp(App[None]):
    """Nothing but the list."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def compose(self) -> ComposeResult:
        yield ItemList(BackendCallers((), 60), lambda: datetime.now(UTC))

    def on_mount(self) -> None:
        self.call_after_refresh(self.run_worker, self._opened)

    async def _opened(self) -> None:
        table = self.query_one(ItemList)
        queue = await off_loop(lambda: open_queue(self._path))
        table.callers = BackendCallers((queue,), 60)
        table.question = Question(Filter(), Sort())
        table.focus()
