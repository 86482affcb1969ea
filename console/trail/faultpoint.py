"""Named points that a test can listen to, to kill its own process there and prove that nothing is lost.

Nothing in the product sets the listener, and no variable or option does. The points: before_intent, after_intent,
before_outcome, after_outcome, before_state, after_state.
"""

from __future__ import annotations

from collections.abc import Callable

listener: Callable[[str], None] | None = None


def reach(name: str) -> None:
    if listener is not None:
        listener(name)
