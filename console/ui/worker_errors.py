"""Reports the errors of Textual workers, which otherwise reach only the widget that started them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from textual.dom import DOMNode
from textual.worker import Worker, WorkerState

if TYPE_CHECKING:
    from console.ui.app import Console


class ReportsWorkerErrors:
    """A mixin for whatever starts workers: a Fault is shown to the person, any other error ends the console."""

    def start(self, work: Callable[[], Coroutine[Any, Any, Any]], group: str, *, exclusive: bool = True) -> None:
        """Start a worker and cancel the others of its group, unless it is not exclusive.

        `work` is a function, not a coroutine: a worker cancelled before it starts leaves nothing unawaited.
        """
        cast(DOMNode, self).run_worker(cast(Any, work), group=group, exclusive=exclusive, exit_on_error=False)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR and isinstance(event.worker.error, Exception):
            cast("Console", cast(DOMNode, self).app).worker_failed(event.worker.error)
