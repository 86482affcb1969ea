"""Predicts whether the validator will take a partition.

A validator takes pending partitions, and never a failed one. Only our own validator (`validator: true`) reads the
control table: it also takes a success whose reprocessing is requested, waits until `next_run_at`, and leaves paused
partitions alone. Marks in that table bind nobody else's validator.
"""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from console.core.item import Window
from console.core.prediction import Prediction

_NO_ROW = Prediction(False, "It has no row, so the validator does not see it.")
_MAY_HAVE_NO_ROW = Prediction(None, "It has no row yet; its own system decides when it is extracted.")
_FAILED = Prediction(False, "A failed partition is never retried automatically.")
_DONE = Prediction(False, "finished")
_UNKNOWN = Prediction(False, "Its status is unknown.")


class PartitionState(NamedTuple):
    """What a validator's decision about a partition depends on."""

    has_row: bool
    status: str
    paused: str | None = None
    """Who paused it and why, if it is paused."""
    next_run_at: datetime | None = None
    reprocess: bool = False
    """Its reprocessing is requested."""


def predict(state: PartitionState, *, ours: bool) -> Prediction:
    """Whether the validator takes a partition by itself, and when. `ours`: it is this console's validator."""
    if not state.has_row:
        return _NO_ROW if ours else _MAY_HAVE_NO_ROW
    match state.status:
        case "pending":
            return _taken(state) if ours else Prediction(True)
        case "success":
            return _taken(state) if ours and state.reprocess else _DONE
        case "failed":
            return _FAILED
        case _:
            return _UNKNOWN


def _taken(state: PartitionState) -> Prediction:
    if state.paused is not None:
        return Prediction(False, f"Paused by {state.paused}")
    return Prediction(True, at=None if state.next_run_at is None else Window.at(state.next_run_at))
