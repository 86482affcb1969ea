"""Workers that fail are heard: their end is told only to the widget that started them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from textual.dom import DOMNode
from textual.worker import Worker, WorkerState

if TYPE_CHECKING:
    from console.ui.app import Console


class Reports:
    """For whatever starts workers: a Fault is told to the person, anything else ends the console."""

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        if event.state is WorkerState.ERROR and isinstance(event.worker.error, Exception):
            cast("Console", cast(DOMNode, self).app).worker_failed(event.worker.error)
