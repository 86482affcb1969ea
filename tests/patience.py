"""How long tests wait: long enough for a busy machine, and no longer than needed."""

from __future__ import annotations

import os

PATIENCE = 120.0
"""Seconds after which something that is waited for has not come. A wait ends as soon as it comes."""


def busy() -> float:
    """How many times longer than alone a process may take on this machine just now, at least 1."""
    return max(1.0, 1.5 * os.getloadavg()[0] / (os.cpu_count() or 1))
