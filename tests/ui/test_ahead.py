"""Who is sent ahead to read: what they say, what they leave alone, and when they are gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from console.__main__ import _foretold
from console.ahead import Ahead, said
from console.core.backend import Count
from console.core.faults import ConfigFault
from console.core.item import NEEDS_EYES, Condition
from console.settings import load
from tests.ui.terminal import ROOT, Terminal
from tests.ui.world import NOON, make_async

SHOWING = textwrap.dedent("""
    import sys, threading
    from pathlib import Path
    from console.__main__ import _bare, _foretold
    from console.ahead import send
    from console.glance import glance
    from console.settings import load
    path = Path(sys.argv[1])
    ahead = send(lambda: _foretold(load(path)))
    path.with_name("child").write_text(str(ahead._child))
    from console.ui.app import run_console
    sys.exit(run_console(_bare(glance(path), False), lambda: threading.Event().wait(), ahead=ahead))
""")
HANGING = textwrap.dedent("""
    import os, signal, sys, time
    from console.ahead import send
    ahead = send(lambda: (time.sleep(60) for _ in "a"), longest=1)
    print(ahead._child, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
""")
FAILING = textwrap.dedent("""
    import sys
    from pathlib import Path
    from console.__main__ import _foretold
    from console.ahead import send
    from console.settings import load
    ahead = send(lambda: _foretold(load(Path(sys.argv[1]))))
    print(ahead.heard())
    ahead.close()
""")
THREADED = textwrap.dedent("""
    import threading
    from console.ahead import send
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    print(send(lambda: ()))
""")


@pytest.fixture
def config(tmp_path: Path) -> Path:
    make_async(tmp_path / "queue.db", 120, NOON)
    path = tmp_path / "config.yaml"
    path.write_text(
        f"console: {{trail: 'sqlite:///{tmp_path / 'trail.db'}'}}\n"
        "backends:\n"
        "  lost: {plugin: nowhere}\n"
        "  gone: {plugin: sqlite_queue, url: 'sqlite:////nowhere/queue.db'}\n"
        f"  queue: {{plugin: sqlite_queue, url: 'sqlite:///{tmp_path / 'queue.db'}'}}\n"
    )
    path.chmod(0o600)
    return path


def python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_what_answers_is_foretold_as_it_is_and_nothing_is_left_beside_it(config: Path) -> None:
    before = {path: path.read_bytes() for path in config.parent.iterdir()}
    (again, page), (name, counts) = _foretold(load(config))
    assert (name, counts[Condition.TERMINAL], counts[Condition.STUCK]) == ("queue", Count(36), Count(12))
    assert again == name
    assert {item.condition for item in page.items} <= set(NEEDS_EYES)
    assert page.items
    assert {path: path.read_bytes() for path in config.parent.iterdir()} == before


def test_the_figures_are_shown_while_the_console_still_loads_its_drivers(config: Path) -> None:
    terminal = Terminal([sys.executable, "-c", SHOWING, str(config)])
    shown = terminal.until("36 terminal")
    assert "asking" in shown  # nobody claims yet that it is live
    assert "live" not in shown
    terminal.press("q")
    assert terminal.left() == 0
    assert not alive(int(config.with_name("child").read_text()))


def test_so_are_the_first_rows(config: Path) -> None:
    """The key that leads to them does not wait for the drivers; the next one does, and says nothing of it."""
    terminal = Terminal([sys.executable, "-c", SHOWING, str(config)])
    terminal.press("2")
    terminal.until("next retry")
    terminal.until("task-")
    shown = terminal.until("≥ 96")
    assert "gone has not answered yet" in shown
    assert "Nothing needs eyes" not in shown
    terminal.press("r")
    assert "Plan" not in terminal.read()
    terminal.press("q")
    assert terminal.left() == 0


def test_whoever_has_said_all_is_not_left_behind_as_a_zombie(config: Path) -> None:
    terminal = Terminal([sys.executable, "-c", SHOWING, str(config)])
    terminal.until("36 terminal")
    terminal.read()
    assert not Path(f"/proc/{config.with_name('child').read_text()}").exists()
    terminal.press("q")
    assert terminal.left() == 0


def test_a_config_that_is_wrong_is_not_believed_and_not_told_twice(config: Path) -> None:
    config.write_text(config.read_text().replace("plugin: nowhere", "plugin: nowhere, plugin: sqlite_queue"))
    with pytest.raises(ConfigFault):
        load(config)
    done = python(FAILING, config)
    assert (done.stdout, done.stderr, done.returncode) == ("None\n", "", 0)


def test_one_whose_sender_was_killed_ends_by_itself() -> None:
    done = python(HANGING)
    assert done.returncode == -signal.SIGKILL
    end = time.monotonic() + 20
    while alive(int(done.stdout)):
        assert time.monotonic() < end
        time.sleep(0.1)


def test_what_cannot_be_understood_is_silence() -> None:
    """A plugin's page may have what this process cannot load."""
    reading, writing = os.pipe()
    ahead = Ahead(os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600"), reading)
    os.write(writing, said(("queue", {}))[:4] + b"x" * 99)
    os.close(writing)
    assert ahead.heard() is None
    ahead.close()


def test_nobody_is_sent_by_a_process_with_threads() -> None:
    assert python(THREADED).stdout == "None\n"


def test_nobody_is_sent_where_there_is_no_second_core() -> None:
    core = min(os.sched_getaffinity(0))
    worthwhile = f"import os; os.sched_setaffinity(0, [{core}]); from console.ahead import worthwhile; print(worthwhile())"
    assert python(worthwhile).stdout == "False\n"


def test_from_then_on_only_what_the_console_reads_itself_counts(config: Path) -> None:
    terminal = Terminal([sys.executable, "-m", "console", "--config", str(config)])
    terminal.until("36 terminal")
    terminal.until("● 1 ✗ 2 down")
    terminal.press("q")
    assert terminal.left() == 0
