"""A change runs through few modules: no more than docs/exercises.md lists. A further one has to be explained there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.route import to_the_line, to_the_update


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))


def test_a_requeue_runs_through_few_modules() -> None:
    route = to_the_update()
    assert "console/sql/guarded.py" in route
    assert len(route) <= 42, sorted(route)
    assert "plugins/sqlite_queue/engine.py" not in route, "the worker is no part of a requeue"


def test_a_row_becomes_a_line_through_few_modules() -> None:
    route = to_the_line()
    assert "console/cli/table.py" in route
    assert len(route) <= 24, sorted(route)
