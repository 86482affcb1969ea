"""`--watch`: what each round shows, how often it reads, and how it ends."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from console.cli.repeat import repeated
from console.core.budget import HOLD_LIMIT, ReadCosts, charge
from console.core.confirm import Limits
from console.core.faults import NoSuchItem, QueryFault, Unreachable, UsageFault
from console.core.session import Session
from console.testing.clock import FrozenClock, StopFlag
from console.testing.memory_queue import MemoryQueue
from tests.cli.place import Place, environment, failed, retrying
from tests.patience import PATIENCE
from tests.ui.terminal import Terminal


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(statement)


@contextmanager
def on_a_terminal(
    place: Place, *arguments: str, size: tuple[int, int] = (24, 120), term: str = "xterm-256color"
) -> Iterator[Terminal]:
    command = [sys.executable, "-m", "console", "--config", str(place.write_config()), *arguments, "--watch"]
    more = {name: value for name, value in environment(place.folder).items() if name not in ("COLUMNS", "LINES")}
    terminal = Terminal(command, size, {**more, "TERM": term})
    try:
        yield terminal
    finally:
        terminal.close()


@contextmanager
def in_a_pipe(place: Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = place.spawn(*arguments, "--watch")
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def line_with(process: subprocess.Popen[str], wanted: str) -> str:
    assert process.stdout
    return next(line for line in process.stdout if wanted in line)


@pytest.fixture
def queue(place: Place) -> Path:
    path = place.queue("one", failed("a", "ERR_OLD: before"), retrying("b", 600))
    place.use_wal("one")
    place.console = "  refresh: 1s\n  load: 100%\n"
    place.deadline = "60s"
    return path


# --- on a terminal


@pytest.mark.parametrize("arguments", [("list",), ("causes",), ("show", "one/a")])
def test_a_changed_row_replaces_the_old_one_on_the_terminal(place: Place, queue: Path, arguments: tuple[str, ...]) -> None:
    with on_a_terminal(place, *arguments) as terminal:
        terminal.until("ERR_OLD")
        shown = terminal.until("Ctrl-C ends it.")
        assert "Read at 20" in shown
        assert "Z, next at 20" in shown
        change(queue, "UPDATE async_tasks SET last_error = 'ERR_NEW: after' WHERE task_id = 'a'")
        assert "ERR_OLD" not in terminal.until("ERR_NEW")
        terminal.child.sendintr()
        terminal.child.wait()
        assert (terminal.child.exitstatus, "Traceback" in terminal.read()) == (0, False)


def test_upcoming_is_redrawn(place: Place, queue: Path) -> None:
    with on_a_terminal(place, "upcoming") as terminal:
        terminal.until("Ctrl-C ends it.")
        change(queue, "DELETE FROM async_tasks")
        terminal.until("No retries are due.")


def test_what_does_not_fit_the_terminal_is_counted(place: Place, queue: Path) -> None:
    place.queue("more", *(failed(f"{n:02}", "ERR_OLD: before") for n in range(30)))
    place.use_wal("more")
    with on_a_terminal(place, "list", size=(12, 120)) as terminal:
        shown = terminal.until("Ctrl-C ends it.").splitlines()
    assert shown[0].startswith("key")
    assert "(24 more lines, for which this terminal is too small)" in shown[9]
    assert shown[10].startswith("Read at")


@pytest.mark.parametrize(("arguments", "term"), [(("--format", "jsonl"), "xterm-256color"), ((), "dumb")])
def test_other_formats_and_plain_terminals_get_round_after_round(
    place: Place, queue: Path, arguments: tuple[str, ...], term: str
) -> None:
    with on_a_terminal(place, "list", *arguments, term=term) as terminal:
        terminal.until("ERR_OLD")
        change(queue, "UPDATE async_tasks SET last_error = 'ERR_NEW: after' WHERE task_id = 'a'")
        terminal.until("ERR_NEW")
        assert b"\x1b[2J" not in terminal.sent


# --- in a pipe


def test_a_pipe_gets_the_rows_of_each_round_as_json_lines(place: Place, queue: Path) -> None:
    with in_a_pipe(place, "list") as process:
        assert json.loads(line_with(process, "ERR_OLD"))["key"] == "one/a"
        change(queue, "UPDATE async_tasks SET last_error = 'ERR_NEW: after' WHERE task_id = 'a'")
        assert json.loads(line_with(process, "ERR_NEW"))["key"] == "one/a"
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
        assert (process.returncode, err, "\x1b" in out) == (0, "", False)


def test_sigterm_ends_it_like_any_command_that_reads(place: Place, queue: Path) -> None:
    with in_a_pipe(place, "list") as process:
        line_with(process, "ERR_OLD")
        process.terminate()
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_a_closed_pipe_ends_it_quietly(place: Place, queue: Path) -> None:
    with in_a_pipe(place, "list") as process:
        line_with(process, "ERR_OLD")
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        assert (process.stderr.read(), process.wait(PATIENCE)) == ("", 1)
        process.stdout = None


def test_a_system_that_does_not_answer_for_a_round_is_named(place: Place, queue: Path) -> None:
    other = place.queue("two", failed("c", "ERR_OTHER: two"))
    place.use_wal("two")
    with in_a_pipe(place, "list") as process:
        line_with(process, "ERR_OTHER")
        change(other, "ALTER TABLE async_tasks RENAME TO away")
        assert process.stderr
        assert process.stderr.readline().startswith("retriage: two: ")
        line_with(process, "ERR_OLD")
        change(other, "ALTER TABLE away RENAME TO async_tasks")
        line_with(process, "ERR_OTHER")
        assert process.poll() is None


@pytest.mark.parametrize(("arguments", "said"), [
    (("list", "--format", "csv"), "--watch cannot print CSV, which has one header. Use --format jsonl."),
    (("causes", "--at", "1h"), "--watch cannot be used with --at. The past does not change."),
    (("upcoming", "--at", "1h"), "--watch cannot be used with --at. The past does not change."),
])
def test_what_cannot_be_repeated_is_refused(place: Place, queue: Path, arguments: tuple[str, ...], said: str) -> None:
    done = place.run(*arguments, "--watch")
    assert (done.code, done.out, done.err) == (2, "", f"retriage: {said}\n")


def test_a_load_of_0_reads_only_on_request(place: Place, queue: Path) -> None:
    place.console = "  load: 0\n"
    done = place.run("list", "--watch")
    assert (done.code, done.out) == (2, "")
    assert "--watch needs a `console.load` above 0" in done.err


# --- how often


class SteadyClock(FrozenClock):
    """Also counts the seconds that were slept, however short: a datetime has no less than a microsecond."""

    slept = 0.0

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.slept += seconds


class Rounds:
    """Reads that cost what a test says, by a clock that stands still."""

    def __init__(self, costs: float = 0.0, rounds: int = 4) -> None:
        self.clock, self.stop = SteadyClock(), StopFlag()
        self.session = Session((MemoryQueue("one"), MemoryQueue("two")), self.clock, self.stop, Limits())
        self.began: list[float] = []
        self.limits: list[float | None] = []
        self.costs, self.rounds = costs, rounds
        self.fail: Callable[[int], Exception | None] = lambda _round: None

    def steady(self) -> float:
        return self.clock.slept

    def read(self, costs: ReadCosts) -> int:
        self.began.append(self.steady())
        self.limits.append(costs.hold_limit)
        if len(self.began) == self.rounds:
            self.stop.set()
        for name in ("one", "two"):
            with costs.of(name):
                charge(self.costs if name == "one" else 0.0)
        if (fault := self.fail(len(self.began))) is not None:
            raise fault
        return 0

    def run(self) -> list[float]:
        """The seconds between the beginnings of the rounds."""
        repeated(Namespace(watch=True, format="jsonl"), self.session, self.read, self.steady)
        return [round(after - before, 3) for before, after in zip(self.began, self.began[1:], strict=False)]


def test_without_the_option_it_is_read_once() -> None:
    rounds = Rounds()
    assert repeated(Namespace(watch=False, format="csv"), rounds.session, rounds.read) == 0
    assert len(rounds.began) == 1


def test_a_cheap_read_is_repeated_at_the_refresh() -> None:
    assert Rounds().run() == [5, 5, 5]


def test_a_slow_read_is_not_repeated_soon() -> None:
    """2 s are 1 % of 200 s."""
    gaps = Rounds(costs=2.0).run()
    assert gaps == [pytest.approx(200, rel=0.05)] * 3


def test_only_the_first_round_may_keep_writers_waiting() -> None:
    rounds = Rounds()
    rounds.run()
    assert rounds.limits == [None, HOLD_LIMIT, HOLD_LIMIT, HOLD_LIMIT]


@pytest.mark.parametrize("fault", [Unreachable("connection refused"), NoSuchItem("one/a")])
def test_a_fault_of_a_later_round_is_named_and_the_watch_goes_on(
    fault: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds = Rounds(costs=2.0)
    rounds.fail = lambda number: fault if number == 2 else None
    gaps = rounds.run()
    assert (len(gaps), capsys.readouterr().err) == (3, f"retriage: {fault}\n")
    assert gaps[1] == pytest.approx(200, rel=0.05), "a read that failed costs as much"


@pytest.mark.parametrize(("number", "fault"), [(1, NoSuchItem("one/a")), (2, QueryFault("ambiguous"))])
def test_a_mistake_ends_it(number: int, fault: Exception) -> None:
    rounds = Rounds()
    rounds.fail = lambda now: fault if now == number else None
    with pytest.raises(type(fault)):
        rounds.run()
    assert len(rounds.began) == number


def test_ctrl_c_in_a_read_is_the_end() -> None:
    def interrupted(_costs: ReadCosts) -> int:
        raise KeyboardInterrupt

    assert repeated(Namespace(watch=True, format="jsonl"), Rounds().session, interrupted) == 0


def test_ctrl_c_is_the_end_even_if_a_driver_takes_it_for_a_failed_statement() -> None:
    rounds = Rounds(rounds=3)

    def swallowed(number: int) -> Exception | None:
        if number == 2:
            with suppress(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            return Unreachable("interrupted")
        return None

    rounds.fail = swallowed
    before = signal.getsignal(signal.SIGINT)
    rounds.run()
    assert len(rounds.began) == 2
    assert signal.getsignal(signal.SIGINT) == before


def test_csv_is_refused_before_anything_is_read() -> None:
    rounds = Rounds()
    with pytest.raises(UsageFault):
        repeated(Namespace(watch=True, format="csv"), rounds.session, rounds.read)
    assert rounds.began == []
