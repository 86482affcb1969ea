"""The command as a process: what it imports, how it ends, what it leaves behind."""

from __future__ import annotations

import json
import signal
import sqlite3
import stat
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from console import __main__, __version__, sessions
from console.settings import Settings
from tests.cli.place import Done, Place, at, environment, failed, retrying

ROOT = Path(__file__).parents[2]


def imported_by(place: Place, *arguments: str) -> set[str]:
    """The modules a command loads, and their top-level packages."""
    code = (
        "import sys, runpy\n"
        f"sys.argv = ['retriage', *{list(arguments)!r}]\n"
        "from console.__main__ import main\n"
        "code = main()\n"
        "print(*sorted({part for name in sys.modules for part in (name, name.partition('.')[0])}), file=sys.stderr)\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment(place.folder))
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


HEAVY = {"sqlalchemy", "pydantic", "yaml", "textual", "rich"}
DECLARATIONS = {"plugins", "plugins.partition_store", "plugins.partition_store.commands"}
"""What declares the commands of a plugin, for the help. It imports nothing of the plugin itself."""


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("list", "--help"), ("run", "--help")])
def test_help_and_version_load_nothing(place: Place, arguments: tuple[str, ...]) -> None:
    loaded = imported_by(place, *arguments)
    assert not loaded & HEAVY
    assert {name for name in loaded if name.startswith("plugins")} <= DECLARATIONS


@pytest.mark.parametrize("command", ["list", "causes", "upcoming", "check", "plugins"])
def test_no_command_loads_textual(place: Place, command: str) -> None:
    place.queue("one", failed("a"))
    config = str(place.write_config())
    assert "textual" not in imported_by(place, "--config", config, command, "--format", "table")
    assert "rich" not in imported_by(place, "--config", config, command)


def test_a_config_mistake_is_reported_before_a_driver_is_loaded(place: Place) -> None:
    place.console = "  refesh: 5s\n"
    code = (
        "import sys\nfrom console.__main__ import main\n"
        f"code = main(['--config', {str(place.write_config())!r}, 'list'])\n"
        "sys.exit(70 if 'sqlalchemy' in sys.modules else code)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], env=environment(place.folder), stderr=subprocess.DEVNULL).returncode == 2


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("list", "--help")])
def test_what_was_said_into_a_pipe_arrives(place: Place, arguments: tuple[str, ...]) -> None:
    """The process leaves at once, and Python writes into a pipe only when there is much to write."""
    buffered = {name: value for name, value in environment(place.folder).items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run([sys.executable, "-m", "console", *arguments], capture_output=True, text=True, env=buffered)
    assert (done.returncode, "retriage" in done.stdout) == (0, True)


def test_the_version_is_the_distributions(place: Place) -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert __version__ == declared
    assert place.run("--version").out == f"retriage {declared}\n"


# --- how it ends


def finish(process: subprocess.Popen[str], timeout: float = 60) -> Done:
    out, err = process.communicate(timeout=timeout)
    return Done(process.returncode, out, err)


def test_a_reader_that_goes_away_is_no_drama(place: Place) -> None:
    place.queue("big", *(failed(f"{n:05}", "x" * 500) for n in range(3_000)))
    process = place.spawn("list", "--limit", "0")
    assert process.stdout
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr
    assert (process.stderr.read(), process.wait(60)) == ("", 1)
    process.stderr.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_reported(place: Place) -> None:
    place.queue("one", failed("a"))
    command = [sys.executable, "-m", "console", "--config", str(place.write_config()), "list"]
    for asked in (command, [*command, "--help"], [*command[:3], "--version"]):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(asked, stdout=full, stderr=subprocess.PIPE, text=True, env=environment(place.folder))
        assert (done.returncode, done.stderr) == (1, "retriage: Cannot write the output: No space left on device\n")


def test_ctrl_c_is_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(self: object, config: str | None = None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(__main__.AppContext, "session", interrupt)
    done = place.run("list")
    assert (done.code, done.out, done.err) == (1, "", "retriage: Interrupted.\n")


def test_our_own_fault_is_one_line_and_a_private_file(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(settings: Settings, **_: bool) -> None:
        canary = "hunter2"
        raise RuntimeError(f"cannot use postgresql://u:{canary}@db/app")

    monkeypatch.setattr(sessions, "open_session", explode)
    done = place.run("list")
    assert (done.code, done.out) == (1, "")
    (crash,) = (place.folder / ".local/state/retriage/crashes").iterdir()
    assert done.err == f"retriage: Internal error (RuntimeError). Details are in {crash}.\n"
    assert stat.S_IMODE(crash.stat().st_mode) == 0o600
    assert stat.S_IMODE(crash.parent.stat().st_mode) == 0o700
    text = crash.read_text()
    assert "RuntimeError" in text
    assert "explode" in text
    assert "hunter2" not in text


def test_a_crash_without_a_place_to_write_is_still_one_line(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "open_session", lambda settings, **_: 1 / 0)
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null/nowhere")
    done = place.run("list")
    assert done.code == 1
    assert done.err == "retriage: Internal error (ZeroDivisionError). The details could not be stored.\n"


def test_the_console_needs_a_terminal(place: Place) -> None:
    place.queue("one", failed("a"))
    done = finish(place.spawn(stdin=subprocess.DEVNULL))
    assert (done.code, done.out) == (2, "")
    assert "The console needs a terminal" in done.err


def test_a_terminal_without_these_characters_gets_escapes(place: Place) -> None:
    place.queue("one", failed("a", "naïve ✓"))
    command = [sys.executable, "-m", "console", "--config", str(place.write_config()), "list", "--format", "table"]
    env = {**environment(place.folder), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    assert done.returncode == 0
    assert r"na\xefve \u2713" in done.stdout


# --- run

HANDLER = """
import time
def handle(type, payload):
    if payload["entity_id"] == "e-bad":
        raise ValueError("no \\x1b[31mluck")
    if payload["entity_id"] == "e-slow":
        print("slow began", flush=True)
        time.sleep(1)
"""


@pytest.fixture
def worker(place: Place) -> Place:
    (place.folder / "my_tasks.py").write_text(HANDLER)
    return place


def statuses(path: Path) -> dict[str, tuple[str, int]]:
    connection = sqlite3.connect(path)
    found = {id: (status, attempts) for id, status, attempts in connection.execute("SELECT task_id, status, attempts FROM async_tasks")}
    connection.close()
    return found


def wait_until(done: object, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not done():  # type: ignore[operator]
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_run_works_until_a_signal_and_finishes_its_task(worker: Place, number: signal.Signals) -> None:
    waiting = {"attempts": 0, "status": "PENDING", "error": None}
    path = worker.queue(
        "one", failed("good", **waiting, next_run_at=at(-90)), failed("bad", **waiting, next_run_at=at(-80)),
        failed("slow", **waiting, next_run_at=at(-70)), more=', handler: "my_tasks:handle"',
    )
    process = worker.spawn("run", "one")
    assert process.stdout
    assert process.stdout.readline() == "slow began\n"
    process.send_signal(number)
    done = finish(process)
    assert done.code == 0
    assert statuses(path) == {"good": ("DONE", 1), "bad": ("PENDING", 1), "slow": ("DONE", 1)}
    assert "task bad attempt 1 failed: no ␛[31mluck" in done.err
    assert done.err.splitlines()[-1].endswith("one: stopped after 3 executions")


def test_run_of_the_contract_queue(worker: Place) -> None:
    path = worker.contract_queue(
        "jobs", ("t", "f", "[]", "{}", "PENDING", "{}", None, 3, None, 0, at(-9), at(-9), None, "null"),
        more=', handler: "builtins:print"',
    )
    process = worker.spawn("run", "jobs")

    def finished() -> bool:
        connection = sqlite3.connect(path)
        try:
            return connection.execute("SELECT status FROM tasks").fetchone() == ("SUCCESS",)
        finally:
            connection.close()

    wait_until(finished)
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 0


@pytest.mark.parametrize(("more", "arguments", "code", "said"), [
    ("", ("run", "one"), 2, "backends.one.handler: No handler is configured."),
    (', handler: "nonsense"', ("run", "one"), 2, "'nonsense' is not a handler. Write package.module:function."),
    (', handler: "no_such_module:f"', ("run", "one"), 2, "Cannot import no_such_module: ModuleNotFoundError"),
    (', handler: "json:nope"', ("run", "one"), 2, "json has no function 'nope'"),
    (', handler: "json:loads"', ("run", "one", "--read-only"), 3, "one: This console is read-only"),
    (', handler: "json:loads"', ("--read-only", "run", "one"), 3, "one: This console is read-only"),
    ("", ("run", "tow"), 2, "No backend named 'tow'. Configured: one."),
])
def test_run_refuses_what_cannot_be_run(place: Place, more: str, arguments: tuple[str, ...], code: int, said: str) -> None:
    path = place.queue("one", failed("a", attempts=0, status="PENDING"), more=more)
    before = path.read_bytes()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        done = place.run(*arguments)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert path.read_bytes() == before


def test_run_on_a_missing_file(place: Place) -> None:
    place.attach("gone", more=', handler: "json:loads"')
    done = finish(place.spawn("run", "gone"))
    assert done.code == 4
    assert "there is no such file" in done.err


# --- read-only


def test_reading_commands_leave_no_trace_in_audit_mode(place: Place) -> None:
    path = place.queue("one", failed("a"), retrying("b", 60))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    place.write_config()
    before = {entry.name: (entry.stat().st_mtime_ns, entry.read_bytes()) for entry in place.folder.iterdir() if entry.suffix == ".db"}
    names = sorted(place.folder.iterdir())
    for command in (["list"], ["causes"], ["upcoming"], ["check"], ["show", "one/a"]):
        assert place.run("--read-only", *command).code == 0
    after = {entry.name: (entry.stat().st_mtime_ns, entry.read_bytes()) for entry in place.folder.iterdir() if entry.suffix == ".db"}
    assert (after, sorted(place.folder.iterdir())) == (before, names)


def test_both_places_of_a_global_option_count(place: Place) -> None:
    place.queue("one", failed("a"))
    for arguments in (("--read-only", "check"), ("check", "--read-only")):
        assert '"mode"' in place.run(*arguments).out
    rows = [json.loads(line) for line in place.run("list").out.splitlines()]
    assert rows[0]["key"] == "one/a"
