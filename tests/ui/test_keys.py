"""How many keys it takes, in a real terminal: to a canary of the biggest cause, to an error text, to an undo."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ui.terminal import Terminal
from tests.ui.world import make_async

SCRIPT = textwrap.dedent("""
    import sys
    from pathlib import Path
    from console.ui.app import run_console
    from tests.patience import PATIENCE
    from tests.ui.world import NOON, HeldClock, open_queue, session, with_trail
    folder = Path(sys.argv[1])
    clock = HeldClock(NOON)
    given = session([open_queue(folder / "queue.db", "queue", clock=clock)], clock)
    sys.exit(run_console(lambda: with_trail(given, folder), deadline=PATIENCE))
""")


class CountingTerminal(Terminal):
    """Counts the keys, apart from the reason and the number that are typed."""

    keys = 0

    def key(self, key: str) -> None:
        self.keys += 1
        self.press(key)

    def typed(self, text: str) -> None:
        """A reason or a number, which nobody can be spared."""
        self.press(text)
        self.until(text)


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[CountingTerminal]:
    make_async(tmp_path / "queue.db", 300)
    opened = CountingTerminal([sys.executable, "-c", SCRIPT, str(tmp_path)], (24, 80))
    opened.until("queue")
    yield opened
    opened.close()


def test_a_canary_of_the_biggest_cause_takes_at_most_ten_keys(terminal: CountingTerminal) -> None:
    terminal.key("3")
    terminal.until("causes of")
    terminal.key("r")
    shown = terminal.until("‹canary 10›")
    number = re.search(r"type (\d+)", shown)
    assert number is not None
    terminal.typed("the provider is back")
    terminal.key("\r")
    terminal.until("the number of items that will change")
    terminal.typed(number[1])
    terminal.key("\r")
    terminal.until("Waiting for the canary")
    assert terminal.keys == 4 <= 10


def test_the_error_of_the_top_row_takes_at_most_two_keys(terminal: CountingTerminal) -> None:
    terminal.key("2")
    terminal.until("task-0")
    terminal.key("\r")
    assert re.search("ERROR|HTTP 429|ConnectionError|ValueError|Deadlock|KeyError", terminal.until("native row"))
    assert terminal.keys <= 2


def test_the_undo_of_the_last_override_takes_at_most_four_keys(terminal: CountingTerminal) -> None:
    terminal.press("2")
    terminal.until("task-0")
    terminal.press("/condition:terminal error~timeout\r")
    terminal.until("of 30")
    terminal.press("r")
    terminal.until("1 of 1 selected will be requeued")
    terminal.press("a mistake\r")
    terminal.until("not run yet")
    terminal.press("1")
    terminal.until("Overview")
    terminal.keys = 0
    terminal.key("5")
    terminal.until("not run yet")
    terminal.key("z")
    terminal.until("will be restored")
    terminal.typed("the wrong item")
    terminal.key("\r")
    terminal.until("This is the undo of")
    assert terminal.keys == 3 <= 4
