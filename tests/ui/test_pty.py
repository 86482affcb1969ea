"""The console in a real terminal: opened, filtered, looked at, requeued, left; and what the terminal was sent."""

from __future__ import annotations

import re
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.depth import campaign, in_depth
from tests.patience import PATIENCE
from tests.ui.terminal import Terminal
from tests.ui.test_hostile import hostile_world
from tests.ui.world import NOON, make_async

SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from console.ui.app import run_console
    from tests.patience import PATIENCE
    from tests.ui.world import open_queue, session, with_trail
    folder = Path(sys.argv[1])
    given = session([open_queue(folder / name, name.removesuffix(".db")) for name in sys.argv[2:]])
    sys.exit(run_console(lambda: with_trail(given, folder), deadline=PATIENCE))
""")


Opened = Callable[..., Terminal]


@pytest.fixture
def opened(folder: Path) -> Iterator[Opened]:
    """Opens a console on queues of the folder. None is left running."""
    with ExitStack() as keep:

        def open_one(name: str = "queue.db", size: tuple[int, int] = (24, 80), **more: str) -> Terminal:
            terminal = Terminal([sys.executable, "-c", SCRIPT, str(folder), name], size, more)
            keep.callback(terminal.close)
            return terminal

        yield open_one


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


def test_the_wheel_scrolls_a_list_and_back(opened: Opened) -> None:
    terminal = opened()
    terminal.until(" 36 ")
    terminal.press("2")
    terminal.until("task-00")
    rows = terminal.read().splitlines()[3:20]
    first = next(word for word in rows[0].split() if word.startswith("task-"))
    last = next(word for word in rows[-1].split() if word.startswith("task-"))
    down, up = "\x1b[<65;20;10M", "\x1b[<64;20;10M"
    terminal.press(down * 5)
    end = time.monotonic() + PATIENCE
    while first in terminal.read():
        assert time.monotonic() < end, terminal.read()
    assert last in terminal.read()
    terminal.press(up * 9)
    terminal.until(first)
    terminal.press("q")
    assert terminal.left() == 0


def test_open_filter_look_requeue_see_it_in_the_trail_and_quit(opened: Opened) -> None:
    terminal = opened()
    terminal.until(" 36 ")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("/condition:terminal error~timeout\r")
    terminal.until("of 12")
    terminal.press("\r")
    terminal.until("does not run again automatically")
    terminal.press("r")
    terminal.until("1 of 1 selected will be requeued")
    terminal.press("the timeouts are over")
    terminal.until("timeouts are over")
    terminal.press("\r")
    terminal.until("✓ Written")
    terminal.press("4")
    terminal.until("the timeouts")
    terminal.press("q")
    assert terminal.left() == 0
    assert b"\x1b[?1049l" in terminal.sent  # the screen is given back
    assert b"\x1b[?25h" in terminal.sent  # and so is the cursor


def test_no_byte_of_the_data_reaches_the_terminal_raw(opened: Opened, thorough: bool) -> None:
    terminal = opened("hostile.db", (50, 160))
    terminal.until("terminal")
    terminal.press("2")
    terminal.until("worst first   1 of")  # the rows are there: enter opens one of them
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


def test_keys_typed_ahead_after_a_filter_are_the_lists(opened: Opened) -> None:
    terminal = opened()
    terminal.until(" 36 ")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("/condition:terminal\rs")
    terminal.until("of 36")
    assert "condition:terminals" not in terminal.until("Order and columns")


def test_keys_that_edit_a_filter_count_before_the_enter_behind_them(opened: Opened) -> None:
    terminal = opened()
    terminal.until(" 36 ")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("/condition:terminal\r")
    terminal.until("of 36")
    terminal.press("/" + "\x7f" * 20 + "\r")
    terminal.until("needs attention")


def test_keys_typed_ahead_after_a_search_are_the_items(opened: Opened) -> None:
    terminal = opened()
    terminal.until(" 36 ")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("\r")
    terminal.until("native status")
    terminal.press("/status\rnnn")
    assert "statusn" not in terminal.until("line contains status")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_ends_it_with_the_terminal_restored(opened: Opened, number: signal.Signals) -> None:
    terminal = opened()
    terminal.until(" 36 ")
    terminal.child.kill(number)
    assert terminal.left() == 128 + number
    assert b"\x1b[?1049l" in terminal.sent


SIGNALLED = textwrap.dedent("""
    import asyncio, os
    from {module} import {name} as place
    do = place.{method}
    def signalled(self):
        os.kill(os.getpid(), {number})
        return do(self)
    async def signalled_before(self, widgets):
        os.kill(os.getpid(), {number})
        for _ in range(100):  # meanwhile the app begins to close
            await asyncio.sleep(0)
        await do(self, widgets)
    place.{method} = signalled_before if asyncio.iscoroutinefunction(do) else signalled
""")


@pytest.mark.parametrize("number", in_depth([signal.SIGTERM, signal.SIGHUP, signal.SIGINT], quick=[signal.SIGINT]))
@pytest.mark.parametrize(("module", "name", "method", "key"), [
    pytest.param("console.ui.app", "Console", "run", "", id="before the first screen"),
    pytest.param("console.ui.app", "Console", "get_default_screen", "", id="with the first screen"),
    pytest.param("console.ui.widgets.top_bar", "TopBar", "compose", "", id="in the first screen"),
    pytest.param("console.ui.widgets.top_bar", "TopBar", "mount_composed_widgets", "", id="while that is mounted"),
    pytest.param("console.ui.widgets.filter_bar", "FilterBar", "compose", "2", id="in the next screen"),
    pytest.param("console.ui.widgets.filter_bar", "FilterBar", "on_mount", "2", id="after the next screen is mounted"),
    pytest.param(
        "console.ui.widgets.filter_bar", "FilterBar", "mount_composed_widgets", "2", id="while the next one is mounted"
    ),
])
def test_a_signal_ends_it_at_any_moment(
    folder: Path, module: str, name: str, method: str, key: str, number: signal.Signals
) -> None:
    script = SIGNALLED.format(module=module, name=name, method=method, number=int(number)) + SCRIPT
    terminal = Terminal([sys.executable, "-c", script, str(folder), "queue.db"])
    try:
        if key:
            terminal.until(" 36 ")
            terminal.press(key)
        assert terminal.left() == 128 + number
    finally:
        terminal.close()
    assert terminal.sent.count(b"\x1b[?1049l") == terminal.sent.count(b"\x1b[?1049h")


HANGS = textwrap.dedent(r"""
    import asyncio
    from console.ui import signals
    from console.ui.app import Console
    async def hang(self):
        self.send_to_terminal("\x1b]2;closing\a")
        while True:
            await asyncio.sleep(1)
    Console._on_exit_app = hang
    signals.SECONDS_TO_CLOSE = {seconds}
""")


@pytest.mark.parametrize(("first", "second", "seconds"), [
    (signal.SIGINT, signal.SIGINT, 2 * PATIENCE), (signal.SIGTERM, None, 0.2),
], ids=["interrupted again", "after its time"])
def test_it_ends_though_something_in_it_hangs(
    folder: Path, first: signal.Signals, second: signal.Signals | None, seconds: float
) -> None:
    script = HANGS.format(seconds=seconds) + SCRIPT
    terminal = Terminal([sys.executable, "-c", script, str(folder), "queue.db"])
    try:
        terminal.until(" 36 ")
        terminal.child.kill(first)
        end = time.monotonic() + PATIENCE
        while b"closing" not in terminal.sent:
            terminal.read()
            assert time.monotonic() < end, "the signal was not noticed"
        if second is not None:
            terminal.child.kill(second)
        while terminal.child.isalive():
            terminal.read()
            assert time.monotonic() < end, "it does not end"
        terminal.read()
        assert terminal.child.signalstatus == signal.SIGINT  # what Python does after a KeyboardInterrupt
    finally:
        terminal.close()
    assert b"\x1b[?1049l" in terminal.sent


def stalled(opened: Opened) -> Terminal:
    """A console whose terminal takes nothing any more, as when an ssh session hangs."""
    terminal = opened()
    terminal.until(" 36 ")
    for _ in range(40):
        terminal.press("21")
        time.sleep(0.05)
    return terminal


@pytest.mark.parametrize("number", in_depth([signal.SIGTERM, signal.SIGHUP, signal.SIGINT], quick=[signal.SIGINT]))
def test_a_signal_ends_it_though_the_terminal_takes_nothing(opened: Opened, number: signal.Signals) -> None:
    terminal = stalled(opened)
    terminal.child.kill(number)
    end = time.monotonic() + PATIENCE
    while terminal.child.isalive():
        assert time.monotonic() < end, "it waits for its terminal"
        time.sleep(0.05)


@campaign
def test_a_terminal_that_took_nothing_for_a_while_is_painted_anew(opened: Opened) -> None:
    terminal = stalled(opened)
    time.sleep(3)
    terminal.press("2")
    time.sleep(1)
    terminal.until("task-00")
    missed = sound(terminal)
    terminal.press("1")
    terminal.until(" 36 ")
    terminal.press("2")
    terminal.until("task-00")
    assert missed == sound(terminal)


def sound(terminal: Terminal) -> list[str]:
    """What stands still on the screen."""
    return [re.sub(r"[0-9:]+[smh]?", "0", line) for line in terminal.read().splitlines()]


COLOUR = re.compile(rb"\x1b\[(?:[0-9]+;)*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])(?:;[0-9]+)*m")


def test_without_colour_none_is_sent_and_the_cursor_is_still_seen(opened: Opened) -> None:
    terminal = opened(NO_COLOR="1")
    terminal.until(" 36 ")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("j")
    terminal.read()
    rows = [y for y in range(24) if terminal.screen.buffer[y][10].reverse]
    assert len(rows) == 1
    terminal.press("q")
    assert terminal.left() == 0
    assert not COLOUR.search(terminal.sent)
