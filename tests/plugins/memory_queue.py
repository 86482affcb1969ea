"""The harness of the plugin template, for suites that are tried on the memory queue."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from console.core.backend import (
    APPLIED,
    GONE,
    Action,
    Change,
    DiscardAbility,
    Draft,
    Image,
    Operation,
    Outcome,
    UndoKind,
)
from console.core.item import ItemKey
from console.core.ports import Stop
from console.core.query import Filter, Sort
from console.testing import Harness, MemoryQueue, memory_queue

TEMPLATE = Path(__file__).parents[2] / "docs/plugin_template/test_my_queue.py"


def harness(kind: type[MemoryQueue] = MemoryQueue) -> Harness:
    """As the template makes it, where a copy of the queue is called my_queue."""
    spec = spec_from_file_location("template_of_a_plugins_test", TEMPLATE)
    assert spec
    assert spec.loader
    template = module_from_spec(spec)
    sys.modules["my_queue"] = memory_queue
    spec.loader.exec_module(template)
    made = template.make(kind)
    assert isinstance(made, Harness)
    return made


class Deletes(MemoryQueue):
    """A queue that deletes discarded items."""

    abilities = replace(
        MemoryQueue.abilities, discard=DiscardAbility(undo=UndoKind.NONE, deletes=True, takes_terminal=True)
    )

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        with self._lock:  # a row that is deleted meanwhile would be missing
            yield from list(super().drafts(wanted, sort, operation, now, stop))

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return GONE if operation.action == Action.DISCARD else super().after(change, operation, at, due)

    def write(self, change: Change) -> Outcome:
        if change.after == GONE and self.image(change.keys[0]) == change.before:
            del self.rows[change.keys[0].parts[0]]
            return APPLIED
        return super().write(change)
