"""Named points at which a test may have this process killed, to prove that nothing is lost there.

`RETRIAGE_FAULT_POINT=name` kills at the first pass of that point, `name:3` at the third. Unset, as it is in
every real run, reaching a point costs one comparison. The points: before_intent, after_intent,
before_outcome, after_outcome, before_state, after_state.
"""

from __future__ import annotations

import os
import signal

_NAME, _, _COUNT = os.environ.get("RETRIAGE_FAULT_POINT", "").partition(":")
_passes_left = int(_COUNT) if _COUNT.isdigit() else 1


def reach(name: str) -> None:
    """Die here, without any cleaning up, if this is the point that was asked for."""
    global _passes_left
    if name != _NAME:
        return
    _passes_left -= 1
    if _passes_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
