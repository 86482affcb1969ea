"""The image of one write: some steps, and their task if it has to be woken.

In a plan it is `[task state, task sort key, step, step, …]`, where each step is the list of a `StepImage`'s values. The
task's values are null if the task is not woken.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from console.core.backend import Change, Image


class StepImage(NamedTuple):
    """What a write compares and sets of one step: its most recent transition and its own columns."""

    uuid: str
    state: Any
    sort_key: Any
    attempts: Any
    in_process: Any
    processed: Any
    processed_at: Any
    backoff: Any
    updated_at: Any

    @property
    def columns(self) -> tuple[Any, ...]:
        """The values of the step's own columns, from attempts to updated_at."""
        return self[3:]


class TaskImage(NamedTuple):
    """What a write compares and sets of a task: its most recent transition."""

    state: Any = None
    sort_key: Any = None


NOT_WOKEN = TaskImage()


class UnitImage(NamedTuple):
    """The steps of one write, and their task."""

    task: TaskImage
    steps: tuple[StepImage, ...]

    @classmethod
    def parse(cls, image: Image) -> UnitImage:
        state, sort_key, *steps = image
        return cls(TaskImage(state, sort_key), tuple(StepImage(*step) for step in steps))

    @property
    def wakes(self) -> bool:
        return self.task.state is not None

    @property
    def values(self) -> Image:
        """The image as plans store it."""
        return (*self.task, *map(list, self.steps))

    def columns_of(self, uuid: str) -> dict[str, Any]:
        """The values of one step by column, and those of its task if it is woken."""
        step = next((step for step in self.steps if step.uuid == uuid), None)
        own = {} if step is None else {name: value for name, value in step._asdict().items() if name != "uuid"}
        return {**own, "task": self.task.state} if self.wakes else own


def step_ids(change: Change) -> list[str]:
    """The steps that a plan changes. Its image may contain other steps of the same task, which stay as they are."""
    return ["/".join(key.parts) for key in change.keys]


def changed_steps(change: Change) -> Iterable[tuple[StepImage, StepImage]]:
    """Each step that the write changes, before and after."""
    before, after = UnitImage.parse(change.before).steps, UnitImage.parse(change.after).steps
    return [(was, then) for was, then in zip(before, after, strict=True) if was != then]
