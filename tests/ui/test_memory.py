"""What is closed is gone: a console that is open for days must not keep what it has painted."""

from __future__ import annotations

import gc
import json
import sys
import textwrap
import time
from pathlib import Path

import pytest
from textual._styles_cache import StylesCache

from tests.depth import campaign, in_depth
from tests.ui.driving import failures, opened, until
from tests.ui.terminal import Terminal
from tests.ui.world import make_async, small_world, with_trail

OPENINGS = 6
HEAP = 64 << 20
"""What glibc sets aside for one, and where it begins."""


def _painted() -> int:
    """How many widgets have lines of theirs kept."""
    gc.collect()
    return sum(isinstance(found, StylesCache) for found in gc.get_objects())


@pytest.mark.parametrize("key", in_depth(["r", "f", "e", "colon", "question_mark", "ctrl+p"], quick=["r"]))
async def test_what_is_closed_is_not_kept(tmp_path: Path, key: str) -> None:
    async with opened(with_trail(small_world(tmp_path, 60), tmp_path)) as pilot:
        place = await failures(pilot)
        kept = []
        for _ in range(OPENINGS):
            await pilot.press(key)
            await until(pilot, lambda: pilot.app.screen is not place)
            await pilot.pause(0.1)
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is place)
            await pilot.pause(0.1)
            kept.append(_painted())
    assert kept[-1] - kept[0] < OPENINGS, kept


WATCHED = textwrap.dedent("""
    import json, sys
    from weakref import finalize
    from console.__main__ import main
    from console.ui.screens.help import HelpScreen

    made, live = 0, set()

    def watched(make):
        def init(screen, *given):
            global made
            make(screen, *given)
            made += 1
            live.add(made)
            finalize(screen, live.discard, made)
            open(sys.argv[2], "w").write(json.dumps([made, len(live)]))

        return init

    HelpScreen.__init__ = watched(HelpScreen.__init__)
    sys.exit(main(["--config", sys.argv[1]]))
""")


def _config(folder: Path, *names: str) -> Path:
    for name in names:
        make_async(folder / f"{name}.db", 20)
    backends = "".join(f"  {name}: {{plugin: sqlite_queue, url: 'sqlite:///{folder}/{name}.db'}}\n" for name in names)
    path = folder / "config.yaml"
    path.write_text(f"console: {{refresh: 2s, trail: 'sqlite:///{folder}/trail.db'}}\nbackends:\n{backends}")
    path.chmod(0o600)
    return path


def test_threads_share_a_few_heaps(tmp_path: Path) -> None:
    """One for each thread would be filled to its own highest mark, and never given back."""
    terminal = Terminal([sys.executable, "-m", "console", "--config", str(_config(tmp_path, "one", "two", "three"))], (40, 120))
    terminal.until("● 3")
    for key in "2341":
        terminal.press(key)
        time.sleep(0.3)
        terminal.read()
    process = Path(f"/proc/{terminal.child.pid}")
    threads = len(list((process / "task").iterdir()))
    starts = [int(line.split("-")[0], 16) for line in (process / "maps").read_text().splitlines() if len(line.split()) < 6]
    heaps = sum(start % HEAP == 0 for start in starts)
    terminal.press("q")
    assert terminal.left() == 0
    assert threads > 6
    assert heaps <= 5, f"{heaps} of {threads} threads; some began before the console could say so"


@campaign
def test_closed_screens_are_freed_before_many_more_are_opened(tmp_path: Path) -> None:
    """The start turns the garbage collector off; it has to be turned on again with its usual thresholds."""
    report = tmp_path / "report.json"
    terminal = Terminal([sys.executable, "-c", WATCHED, str(_config(tmp_path, "queue")), str(report)], (40, 120))
    terminal.until("retries, next")
    terminal.until("queue")
    for _ in range(25):
        terminal.press_until("?", "Keys in")
        terminal.child.send("\x1b[27u")
        terminal.until("retries, next")
    terminal.press("q")
    assert terminal.left() == 0
    made, live = json.loads(report.read_text())
    assert made >= 25
    assert live <= 12, "closed, and neither used nor freed"
