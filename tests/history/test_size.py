"""How large the history becomes. `python -m benchmarks --only history` measures how fast it answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.history import written
from console.history.store import open_history

SYSTEMS = 10
MOST_MEGABYTES = 40
"""A fifth of what 50 systems may take."""


@pytest.mark.campaign
def test_a_month_is_small(tmp_path: Path) -> None:
    history = open_history(f"sqlite:///{tmp_path}/history.db", read_only=False)
    written(history, SYSTEMS)
    history.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("history.db*")) / 1e6 <= MOST_MEGABYTES
