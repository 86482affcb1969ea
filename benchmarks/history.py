"""The history: its size, what a sample costs, and a chart and a past time against the same question to a plain table
that an index serves.
"""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure import Result, compare, from_pairs
from console.core.backend import Count, Histogram
from console.core.budget import ReadingBudget
from console.core.cause_count import Cause
from console.core.history import UPCOMING_STEP, UPCOMING_STEPS
from console.core.item import Condition
from console.core.policy import PolicyOverride
from console.history.recorder import HistoryRecorder, Sampler
from console.history.samples import Reading, SampleWriter
from console.history.store import HistoryStore, open_history
from console.history.thinning import thin
from console.testing.clock import FrozenClock
from plugins.sqlite_queue import SqliteQueue
from plugins.sqlite_queue.backend import Options
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL

CAUSES, DAYS = 200, 30
_BAR = 1.3
_MOST_MEGABYTES = 200
_MOST_SECONDS = 0.6
"""Of processor time for the sample of one minute: 1 % of a core."""
_FAILURES = 1_000
"""Of each system. Fifty of them have as many as a sample reads at most."""
_SAMPLES = 12
_START = datetime(2026, 10, 1, tzinfo=UTC)
_END = _START + timedelta(days=DAYS)
_MINUTE = timedelta(minutes=1)
_CAUSE = f"{7:012x}"


class Figures:
    """The figures of all systems, some of which change at each step."""

    def __init__(self, systems: int) -> None:
        self.chance = random.Random(30)
        self.values = [[self.chance.randrange(1, 5_000) for _ in range(CAUSES)] for _ in range(systems)]

    def change(self, share: float) -> None:
        for values in self.values:
            for number in self.chance.sample(range(CAUSES), int(CAUSES * share)):
                values[number] = max(values[number] + self.chance.randrange(-20, 40), 0)

    def readings(self) -> list[Reading]:
        found = []
        for system, values in enumerate(self.values):
            name = f"system-{system:02d}"
            causes = [
                Cause(f"{number:012x}", "ERR: it failed", value, 0, None, None, ((name, value),))
                for number, value in enumerate(values) if value
            ]
            steps = tuple(self.chance.randrange(50) for _ in range(UPCOMING_STEPS))
            counts = {Condition.TERMINAL: Count(sum(values)), Condition.RETRYING: Count(sum(steps))}
            found.append(Reading(name, counts, causes, Histogram(_START, UPCOMING_STEP, steps)))
        return found


def written(history: HistoryStore, systems: int) -> None:
    """Write a busy month, as often as samples are kept: hourly, then every 10 minutes, then every minute."""
    writer, figures = SampleWriter(history.storage, "me"), Figures(systems)
    ages = [timedelta(hours=hours) for hours in range(DAYS * 24, 48, -1)]
    ages += [timedelta(minutes=10 * tens) for tens in range(48 * 6, 12 * 6, -1)]
    ages += [timedelta(minutes=minutes) for minutes in range(12 * 60, -1, -1)]
    for number, age in enumerate(ages):
        figures.change(1.0 if age > timedelta(days=2) else 0.6 if age > timedelta(hours=12) else 0.1)
        writer.write(figures.readings(), _END - age)
        if number % 24 == 0:
            thin(history.storage, _END - age)
    thin(history.storage, _END)


def cases(quick: bool) -> Iterator[Result]:
    systems, steps = 10 if quick else 50, DAYS * 24
    start = _START + timedelta(hours=1)
    with TemporaryDirectory() as folder:
        history = open_history(f"sqlite:///{folder}/history.db", read_only=False)
        written(history, systems)
        plain = _plain(Path(folder), history, systems, start, steps)
        size = f"{systems} systems, {DAYS} days"
        megabytes = sum(path.stat().st_size for path in Path(folder).glob("history.db*")) / 1e6
        most = _MOST_MEGABYTES * systems / 50
        yield from_pairs(f"size of the history, {size}", 1.0, [(megabytes, most)], unit="MB")
        yield _sampling(Path(folder), history, systems)
        yield compare(
            f"chart of a cause, {size}", _BAR, lambda: history.cause_trends(start, _END + _MINUTE, steps, [_CAUSE]),
            lambda: plain.execute("SELECT at, sum(value) FROM value WHERE cause = ? GROUP BY at", (_CAUSE,)).fetchall(),
            turns=15, clock=time.process_time,
        )
        moment = start + (_END + _MINUTE - start) / steps * (steps // 2)
        question = "SELECT cause, system, value FROM value WHERE at = ?"
        yield compare(
            f"causes at a past time, {size}", _BAR, lambda: history.snapshot(moment),
            # It shows every cause in every system, and how much it has grown in the hour before.
            lambda: [plain.execute(question, (at,)).fetchall() for at in (steps // 2, steps // 2 - 1)],
            turns=15, clock=time.process_time,
        )
        history.close()
        plain.close()


def _plain(folder: Path, history: HistoryStore, systems: int, start: datetime, steps: int) -> sqlite3.Connection:
    """The same values in the plain way: one row for each, found by its index."""
    plain = sqlite3.connect(folder / "plain.db")
    plain.execute("CREATE TABLE value (cause TEXT, system TEXT, at INTEGER, value INTEGER)")
    for system in range(systems):
        name = f"system-{system:02d}"
        trends = history.cause_trends(start, _END + _MINUTE, steps, backend=name)
        plain.executemany("INSERT INTO value VALUES (?, ?, ?, ?)", (
            (cause, name, number, value)
            for cause, trend in trends.items() for number, value in enumerate(trend.values) if value is not None
        ))
    plain.execute("CREATE INDEX by_cause ON value (cause, at)")
    plain.execute("CREATE INDEX by_time ON value (at)")
    plain.commit()
    return plain


def _sampling(folder: Path, history: HistoryStore, systems: int) -> Result:
    """The processor time of one sample after another, each of all failures, with their writing and thinning."""
    queues = [_queue(folder / f"queue-{number:02d}.db") for number in range(systems)]
    sampler = Sampler(queues, {queue.name: ReadingBudget(share=1.0) for queue in queues})
    clock = FrozenClock(_END + _MINUTE)
    recorder = HistoryRecorder(history.storage, SampleWriter(history.storage, "me"), sampler, clock)
    pairs = []
    for _ in range(_SAMPLES):
        began = time.process_time()
        recorder.record()
        pairs.append((time.process_time() - began, _MOST_SECONDS * systems / 50))
        clock.tick(_MINUTE)
    for queue in queues:
        queue.close()
    case = f"processor time of a sample, {systems} systems, {_FAILURES} failures and {CAUSES} causes each"
    return from_pairs(case, 1.0, pairs[1:], note="1 % of a core")


def _queue(path: Path) -> SqliteQueue:
    with sqlite3.connect(path) as connection:
        connection.executescript(ASYNC_TASKS_DDL)
        at = (_END - timedelta(hours=1)).isoformat()
        connection.executemany("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (
            (f"task-{n}", "ANALYZE_EXECUTED", "e", "FAILED", 4, at, f"ERR_{_letters(n % CAUSES)}: took {n} s", at, at)
            for n in range(_FAILURES)
        ))
    connection.close()
    options = Options.model_validate({"url": f"sqlite:///{path}"})
    deadline = timedelta(seconds=60)
    return SqliteQueue.open(path.stem, options, PolicyOverride(), read_only=True, deadline=deadline)


def _letters(number: int) -> str:
    """Numbers in an error do not make another cause."""
    return chr(65 + number // 26) + chr(65 + number % 26)
