"""The console in a real terminal: opened, filtered, looked at, requeued, left; and what the terminal was sent."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
import time
from pathlib import Path

import pexpect
import pyte
import pytest

from tests.ui.test_hostile import hostile_world
from tests.ui.world import NOON, make_async

ROOT = Path(__file__).parents[2]
SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from console.ui.app import run_console
    from tests.ui.world import desk, open_queue, with_trail
    folder = Path(sys.argv[1])
    laid = desk([open_queue(folder / name, name.removesuffix(".db")) for name in sys.argv[2:]])
    sys.exit(run_console(with_trail(laid, folder)))
""")


class Terminal:
    """A console under a pty, its bytes, and what a terminal makes of them."""

    def __init__(self, folder: Path, *names: str, size: tuple[int, int] = (24, 80)) -> None:
        inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        environment = {**inherited, "TERM": "xterm-256color", "COLORTERM": "truecolor", "PYTHONPATH": str(ROOT)}
        self.child = pexpect.spawn(
            sys.executable, ["-c", SCRIPT, str(folder), *names], dimensions=size, env=environment, cwd=str(ROOT)
        )
        self.screen = pyte.Screen(size[1], size[0])
        self._stream = pyte.ByteStream(self.screen)
        self.sent = b""

    def read(self) -> str:
        try:
            while True:
                data = self.child.read_nonblocking(65536, timeout=0.05)
                self.sent += data
                self._stream.feed(data)
        except (pexpect.TIMEOUT, pexpect.EOF):
            return "\n".join(self.screen.display)

    def until(self, text: str, within: float = 30) -> str:
        end = time.monotonic() + within
        while text not in (shown := self.read()):
            assert time.monotonic() < end, f"{text!r} did not come:\n{shown}"
        return shown

    def press(self, keys: str) -> None:
        self.child.send(keys)

    def left(self, within: float = 10) -> int:
        end = time.monotonic() + within
        while self.child.isalive():
            self.read()
            assert time.monotonic() < end, "it does not end"
        self.read()
        self.child.close()
        return self.child.exitstatus


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_async(tmp_path / "queue.db", 120, NOON)
    hostile_world(tmp_path)
    return tmp_path


def test_open_filter_look_requeue_see_it_in_the_trail_and_quit(folder: Path) -> None:
    terminal = Terminal(folder, "queue.db")
    terminal.until("36 terminal")
    terminal.press("2")
    terminal.until("task-00")
    terminal.press("/condition:terminal error~timeout\r")
    terminal.until("of 12")
    terminal.press("\r")
    terminal.until("will not run again by itself")
    terminal.press("r")
    terminal.until("1 would change")
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


def test_no_byte_of_the_data_reaches_the_terminal_raw(folder: Path) -> None:
    terminal = Terminal(folder, "hostile.db", size=(50, 160))
    terminal.until("terminal")
    terminal.press("2")
    terminal.until("␛")
    for _ in range(6):
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


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_with_the_terminal_restored(folder: Path, number: signal.Signals) -> None:
    terminal = Terminal(folder, "queue.db")
    terminal.until("36 terminal")
    terminal.child.kill(number)
    assert terminal.left(5) == 128 + number
    assert b"\x1b[?1049l" in terminal.sent
