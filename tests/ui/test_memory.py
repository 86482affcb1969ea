"""What is closed is gone: a console that is open for days must not keep what it has painted."""

from __future__ import annotations

import gc
import json
import sys
import textwrap
from pathlib import Path

import pytest
from textual._styles_cache import StylesCache

from tests.ui.driving import failures, opened, until
from tests.ui.terminal import Terminal
from tests.ui.world import make_async, small_world, with_trail

OPENINGS = 6


def _painted() -> int:
    """How many widgets have lines of theirs kept."""
    gc.collect()
    return sum(isinstance(found, StylesCache) for found in gc.get_objects())


@pytest.mark.parametrize("key", ["r", "f", "e", "g", "question_mark", "ctrl+p"])
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


def test_closed_screens_are_freed_before_many_more_are_opened(tmp_path: Path) -> None:
    """From the front door: the start puts the collector off, and it must be put on again as it was."""
    make_async(tmp_path / "queue.db", 20)
    (tmp_path / "config.yaml").write_text(
        f"backends: {{queue: {{plugin: sqlite_queue, url: 'sqlite:///{tmp_path}/queue.db'}}}}\nconsole: {{trail: 'sqlite:///{tmp_path}/trail.db'}}\n"
    )
    (tmp_path / "config.yaml").chmod(0o600)
    told = tmp_path / "told.json"
    terminal = Terminal([sys.executable, "-c", WATCHED, str(tmp_path / "config.yaml"), str(told)], (40, 120))
    terminal.until("Retries in the next")
    terminal.until("queue")
    for _ in range(25):
        terminal.press_until("?", "Keys in")
        terminal.child.send("\x1b[27u")
        terminal.until("Retries in the next")
    terminal.press("q")
    assert terminal.left() == 0
    made, live = json.loads(told.read_text())
    assert made >= 25
    assert live <= 12, "closed, and neither used nor freed"
