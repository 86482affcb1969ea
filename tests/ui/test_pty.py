"""The console in a real terminal: opened, filtered, looked at, requeued, left; and what the terminal was sent."""

from __future__ import annotations

import re
import signal
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.depth import campaign
from tests.patience import PATIENCE
from tests.ui.terminal import Terminal
from tests.ui.test_hostile import hostile_world
from tests.ui.world import NOON, make_async

SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from console.ui.app import run_console
    from tests.ui.world import open_queue, session, with_trail
    folder = Path(sys.argv[1])
    given = session([open_queue(folder / name, name.removesuffix(".db")) for name in sys.argv[2:]])
    sys.exit(run_console(lambda: with_trail(given, folder)))
""")


def opened(folder: Path, *names: str, size: tuple[int, int] = (24, 80)) -> Terminal:
    return Terminal([sys.executable, "-c", SCRIPT, str(folder), *names], size)


def test_the_welcome_names_the_place_that_is_looked_at(tmp_path: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "console"], (40, 200), {"XDG_CONFIG_HOME": str(tmp_path)})
    shown = terminal.until("No systems are configured yet")
    assert f"Add them to {tmp_path}/retriage/config.yaml and start again" in shown
    terminal.press("q")
    assert terminal.left() == 0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_async(tmp_path / "queue.db", 120, NOON)
    hostile_world(tmp_path)
    return tmp_path


def test_open_filter_look_requeue_see_it_in_the_trail_and_quit(folder: Path) -> None:
    terminal = opened(folder, "queue.db")
    terminal.until("36 terminal")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("/condition:terminal error~timeout\r")
    terminal.until("of 12")
    terminal.press("\r")
    terminal.until("does not run again automatically")
    terminal.press("r")
    terminal.until("1 will be requeued")
    terminal.press("the timeouts are over")
    terminal.until("timeouts are over")
    for key in ("\r", "\r"):
        terminal.press(key)
        terminal.read()
    terminal.until("finished")
    terminal.press("4")
    terminal.until("the timeouts")
    terminal.press("q")
    assert terminal.left() == 0
    assert b"\x1b[?1049l" in terminal.sent  # the screen is given back
    assert b"\x1b[?25h" in terminal.sent  # and so is the cursor


def test_no_byte_of_the_data_reaches_the_terminal_raw(folder: Path, thorough: bool) -> None:
    terminal = opened(folder, "hostile.db", size=(50, 160))
    terminal.until("terminal")
    terminal.press("2")
    terminal.until("␛")
    for _ in range(6 if thorough else 2):
        terminal.press("\r")
        terminal.until("native row")
        terminal.press("\x1b")
        terminal.until("next retry")
        terminal.press("j")
    terminal.press("3")
    terminal.until("causes of")
    terminal.press("q")
    assert terminal.left() == 0
    for forbidden in (
        rb"\x1b\]52",
        rb"\x1b\]8;;http://evil",
        rb"\x1b\[2J\x1b\[31mred",
        rb"\xc2\x9b",
        rb"\x00",
        "\u202e".encode(),
    ):
        assert not re.search(forbidden, terminal.sent), forbidden


def test_keys_typed_ahead_after_a_filter_are_the_lists(folder: Path) -> None:
    terminal = opened(folder, "queue.db")
    terminal.until("36 terminal")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("/condition:terminal\rs")
    terminal.until("of 36")
    assert "condition:terminals" not in terminal.until("by updated")


def test_keys_that_edit_a_filter_count_before_the_enter_behind_them(folder: Path) -> None:
    terminal = opened(folder, "queue.db")
    terminal.until("36 terminal")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("/condition:terminal\r")
    terminal.until("of 36")
    terminal.press("/" + "\x7f" * 20 + "\r")
    terminal.until("needs attention")


def test_keys_typed_ahead_after_a_search_are_the_items(folder: Path) -> None:
    terminal = opened(folder, "queue.db")
    terminal.until("36 terminal")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("\r")
    terminal.until("native status")
    terminal.press("/status\rnnn")
    assert "statusn" not in terminal.until("lines contain status")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_the_terminal_restored(folder: Path, number: signal.Signals) -> None:
    terminal = opened(folder, "queue.db")
    terminal.until("36 terminal")
    terminal.child.kill(number)
    assert terminal.left() == 128 + number
    assert b"\x1b[?1049l" in terminal.sent


def stalled(folder: Path) -> Terminal:
    """A console whose terminal takes nothing any more, as when an ssh session hangs."""
    terminal = opened(folder, "queue.db")
    terminal.until("36 terminal")
    for _ in range(40):
        terminal.press("21")
        time.sleep(0.05)
    return terminal


def test_a_signal_ends_it_though_the_terminal_takes_nothing(folder: Path) -> None:
    terminal = stalled(folder)
    terminal.child.kill(signal.SIGTERM)
    end = time.monotonic() + PATIENCE
    while terminal.child.isalive():
        assert time.monotonic() < end, "it waits for its terminal"
        time.sleep(0.05)


@campaign
def test_a_terminal_that_took_nothing_for_a_while_is_painted_anew(folder: Path) -> None:
    terminal = stalled(folder)
    time.sleep(3)
    terminal.press("2")
    time.sleep(1)
    terminal.until("task-00")
    missed = sound(terminal)
    terminal.press("1")
    terminal.until("36 terminal")
    terminal.press("2")
    terminal.until("task-00")
    assert missed == sound(terminal)


def sound(terminal: Terminal) -> list[str]:
    """What stands still on the screen."""
    return [re.sub(r"[0-9:]+[smh]?", "0", line) for line in terminal.read().splitlines()]


COLOUR = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")


def test_without_colour_none_is_sent_and_the_cursor_is_still_seen(folder: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(folder), "queue.db"]
    terminal = Terminal(command, more={"NO_COLOR": "1"})
    terminal.until("36 terminal")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("j")
    terminal.read()
    rows = [y for y in range(24) if terminal.screen.buffer[y][10].reverse]
    assert len(rows) == 1
    terminal.press("q")
    assert terminal.left() == 0
    assert not COLOUR.search(terminal.sent)
