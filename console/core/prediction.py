"""Predictions: whether a system will run an item by its own rules.

Each plugin has one pure function that predicts what its system does with an item in a given state. Verdicts, plans and
`check` use it, so that none of them promises what another denies.
"""

from __future__ import annotations

from typing import NamedTuple

from console.core.advice import Advice
from console.core.item import Verdict, Window


class Prediction(NamedTuple):
    """Whether an item's own system will run it, and why not."""

    runs: bool | None
    """None: cannot tell."""
    why: str = ""
    """A sentence; empty if it runs."""
    advice: Advice | None = None
    """What would make it run."""
    at: Window | None = None
    """When it runs, if that is known."""

    def apply(self, verdict: Verdict) -> Verdict:
        """The verdict on an item for which its system has this plan."""
        if self.runs is False:
            return verdict._replace(why=self.why, next_retry=None, will_run_again=False)
        at = self.at or verdict.next_retry
        return verdict._replace(why=self.why or verdict.why, next_retry=at, will_run_again=self.runs)
