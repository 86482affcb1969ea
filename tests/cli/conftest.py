"""Every test has a home of its own, and a place with queues."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli import place as places
from tests.cli.place import Place


@pytest.fixture(autouse=True)
def _own_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is due soon is due soon when the test runs, not when it was found."""
    monkeypatch.setattr(places, "NOW", datetime.now(UTC).replace(microsecond=0))


@pytest.fixture(autouse=True)
def _own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RETRIAGE_CONFIG", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Place:
    return Place(tmp_path, capsys)
