"""Workers that fail are heard: their end is told only to the widget that started them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from textual.dom import DOMNode
from textual.worker import Worker, WorkerState

if TYPE_CHECKING:
    from console.ui.app import Console


class Reports:
    """For whatever starts workers: a Fault is told to the person, anything else ends the console."""

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]], group: str, *, exclusive: bool = True) -> None:
        """Begin this instead of what is under way in the group, or beside it. It is made only when it begins:
        cancelled before that, it leaves nothing unawaited behind."""
        cast(DOMNode, self).run_worker(cast(Any, work), group=group, exclusive=exclusive, exit_on_error=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR and isinstance(event.worker.error, Exception):
            cast("Console", cast(DOMNode, self).app).worker_failed(event.worker.error)
