"""The sandbox world in a terminal: it moves, it can be repaired in a few keys, and it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from console.__main__ import main
from tests.demo.terminal import Terminal, no_worker_left, workers_of
from tests.depth import in_depth
from tests.patience import PATIENCE


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["demo", "--dir", str(tmp_path / "w"), "--no-open"]) == 0
    return tmp_path / "w"


def done(folder: Path) -> int:
    connection = sqlite3.connect(folder / "payments.db", timeout=30)
    try:
        found: int = connection.execute("SELECT count(*) FROM async_tasks WHERE status = 'DONE'").fetchone()[0]
        return found
    finally:
        connection.close()


def test_the_biggest_cause_is_requeued_in_a_few_keys_and_its_items_run(folder: Path) -> None:
    before = done(folder)
    terminal = Terminal("demo", "--dir", str(folder))
    assert "payments" in terminal.until("▲ storm")
    terminal.press("3")
    causes = terminal.until("causes of").splitlines()
    heading = next(n for n, line in enumerate(causes) if line.split()[:1] == ["cause"])
    assert "RATE_LIMITED" in causes[heading + 1]
    terminal.press("r")
    wanted = re.search(r"type (\d+)", terminal.until("‹canary 10›"))
    assert wanted
    for key in ("ok", "\r", wanted[1], "\r"):
        terminal.press(key)
        terminal.read()
    terminal.until("✓ Written")
    end = time.monotonic() + PATIENCE
    while done(folder) < before + 20:
        assert time.monotonic() < end, "nobody takes what was requeued"
        time.sleep(0.2)
    terminal.press("q")
    assert terminal.left() == 0
    assert no_worker_left(folder)


@pytest.mark.parametrize("place", in_depth(["2", "3", "4"], quick=["3"]))
def test_a_key_typed_ahead_is_meant_for_the_place_not_for_its_filter(folder: Path, place: str) -> None:
    terminal = Terminal("demo", "--dir", str(folder))
    terminal.until("▲ storm")
    terminal.press(f"{place}q")
    assert terminal.left() == 0


@pytest.mark.parametrize("number", in_depth([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT], quick=[signal.SIGKILL, signal.SIGHUP]))
def test_however_the_console_ends_its_workers_end_with_it(folder: Path, number: signal.Signals) -> None:
    terminal = Terminal("demo", "--dir", str(folder))
    terminal.until("▲ storm")
    assert len(workers_of(folder)) == 1
    terminal.child.kill(number)
    assert no_worker_left(folder)
    terminal.close()


def test_ctrl_c_while_it_is_built_leaves_nothing_running_and_a_world_that_is_built_again(tmp_path: Path) -> None:
    folder = tmp_path / "w"
    terminal = Terminal("demo", "--dir", str(folder), "--scale", "3000000")
    terminal.until("payments")
    terminal.press("\x03")
    assert terminal.left() == 1
    assert b"Interrupted" in terminal.sent
    assert no_worker_left(folder)
    assert main(["demo", "--dir", str(folder), "--no-open", "--scale", "200"]) == 0


def test_the_tour_opens_the_world_with_its_guide(folder: Path) -> None:
    terminal = Terminal("tour", "--dir", str(folder))
    terminal.until("Tour 1 of")
    terminal.press("3")
    terminal.until("Tour 2 of")
    terminal.press("q")
    assert terminal.left() == 0
    assert no_worker_left(folder)


def test_in_read_only_mode_nothing_moves(folder: Path) -> None:
    terminal = Terminal("--read-only", "demo", "--dir", str(folder))
    terminal.until("READ-ONLY")
    assert workers_of(folder) == []
    terminal.press("q")
    assert terminal.left() == 0


def test_a_second_console_on_the_same_world_brings_no_second_workers(folder: Path) -> None:
    first = Terminal("demo", "--dir", str(folder))
    first.until("▲ storm")
    second = Terminal("demo", "--dir", str(folder))
    second.until("▲ storm")
    assert len(workers_of(folder)) == 1
    for terminal in (second, first):
        terminal.press("q")
        assert terminal.left() == 0
    assert no_worker_left(folder)


@pytest.mark.parametrize("key", in_depth(["1", "2", "3"], quick=["2"]))
def test_a_terminal_that_is_gone_ends_it_with_nothing_left_running(folder: Path, key: str) -> None:
    """As when an ssh session is lost or a window is closed: what is still to be written has nowhere to go."""
    terminal = Terminal("demo", "--dir", str(folder), size=(50, 160))
    terminal.until("▲ storm")
    terminal.press(key)
    os.close(terminal.child.child_fd)
    end = time.monotonic() + PATIENCE
    while os.waitpid(terminal.child.pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < end, "it waits for a terminal that is gone"
        time.sleep(0.05)
    terminal.child.closed = terminal.child.terminated = True
    assert no_worker_left(folder)
