"""Predicts whether the system of a mapped table will run an item.

Retriage does not know that system. It knows its mapping, so the rule is: the system runs what the mapping calls ready.
Verdicts use it for a row as it is. Plans and `retriage check` use it for a row as a requeue leaves it, see
`status_after`.
"""

from __future__ import annotations

from console.core.item import Window
from console.core.policy import Facts, Phase
from console.core.prediction import Prediction


def predict(facts: Facts, held: str | None = None) -> Prediction:
    """Whether its system will run an item with these facts. `held` is why it does not take it for now."""
    if facts.phase is not Phase.READY:
        return Prediction(False, f"Its status would be {facts.native_status!r}, which its system does not take.")
    if facts.ignored is not None:
        return Prediction(False, f"Its system ignores it: {facts.ignored}.")
    if held is not None:
        return Prediction(None, held)
    return Prediction(True, at=Window.at(facts.due_at) if facts.due_at else None)
