"""Nothing lost, nothing twice, everything recorded: the short counts. `python -m tests.faults --full` has the long ones."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.faults import closed, kill, mutate, rivals, signals
from tests.faults.processes import ROOT

SEED = 20261110


def campaign(*options: str) -> dict[str, Any]:
    """In a process of its own: it forks, which a test runner with threads should not."""
    ran = subprocess.run(
        [sys.executable, "-m", "tests.faults.kill", "--seed", str(SEED), *options], cwd=ROOT, text=True, capture_output=True, timeout=110
    )
    assert ran.stdout, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout)
    return found


def test_killed_at_random_moments() -> None:
    found = campaign("--items", "500", "--kills", "8")
    assert found["ok"], found
    assert found["kills"] == 8, found


@pytest.mark.parametrize("point", kill.EVERY_POINT)
def test_killed_at_a_named_point(point: str) -> None:
    found = campaign("--items", "200", "--kills", "0", "--point", point)
    assert found["ok"], found
    assert found["killed_at"] == {point: 1}, found
    if point in kill.UNKNOWN:
        assert found["indeterminate"] > 0, "a worker took something before it was known to be applied"


def test_the_driver_can_fail_a_naive_writer_is_caught() -> None:
    found = campaign("--items", "500", "--kills", "8", "--naive")
    assert not found["ok"], found
    assert found["twice"] > 0, found
    assert found["unrecorded"] > 0, found


@pytest.mark.parametrize("percent", [1, 10, 35, 70, 100])
def test_rows_changed_between_preview_and_apply(tmp_path: Path, percent: int) -> None:
    total = mutate.Mutated()
    mutate.trial(tmp_path, 300, percent / 100, SEED + percent, total)
    assert total.ok, (SEED, total)


@pytest.mark.parametrize("way", closed.WAYS)
def test_an_unusable_trail_means_no_change_soon_said_and_reads_go_on(way: str) -> None:
    total = closed.trials(way, 2)
    assert total.ok, total


@pytest.mark.parametrize("way", ["size", "nobody", "hidden"])
def test_a_trail_without_room_or_rights_means_no_change(way: str) -> None:
    with tempfile.TemporaryDirectory(prefix="retriage-limited-") as folder:
        Path(folder).chmod(0o755)  # another user must be able to come here
        assert closed.limited(Path(folder), way) == ("TrailUnavailable", 0)


def test_two_consoles_on_one_selection_and_four_workers() -> None:
    total = rivals.Rivals()
    rivals.trial(400, SEED, total)
    assert total.ok, (SEED, total)


@pytest.mark.parametrize("number", signals.SIGNALS)
def test_a_signal_in_mid_override(number: int) -> None:
    total = signals.Signalled()
    signals.trial(number, 2_000, total)  # type: ignore[arg-type]
    assert total.ok, total
    assert total.midway == 1
