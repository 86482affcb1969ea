"""The triage list alone on a large queue, its driver loaded behind the first frame."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from textual.app import App, ComposeResult

from console.core.query import Filter, Sort
from console.ui.lanes import Lanes, off_loop
from console.ui.widgets.item_list import ItemList, Question

if TYPE_CHECKING:
    from console.core.backend import Backend


def open_queue(path: Path) -> Backend:
    from datetime import timedelta

    from console.core.policy import PolicyOverride
    from plugins.sqlite_queue import SqliteQueue
    from plugins.sqlite_queue.backend import Options

    return SqliteQueue.open(
        "queue", Options(url=f"sqlite:///{path}"), PolicyOverride(), read_only=False, deadline=timedelta(seconds=60)
    )


class ListApp(App[None]):
    """Nothing but the list."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def compose(self) -> ComposeResult:
        yield ItemList(Lanes((), 60), lambda: datetime.now(UTC))

    def on_mount(self) -> None:
        self.call_after_refresh(self.run_worker, self._opened)

    async def _opened(self) -> None:
        table = self.query_one(ItemList)
        table.lanes = Lanes((await off_loop(lambda: open_queue(self._path)),), 60)
        table.question = Question(Filter(), Sort())
        table.focus()
