"""Recording: one process at a time, kill -9 at any moment, a clock that is set back, systems that are away or slow."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.backend import Count
from console.core.budget import ReadingBudget, charge
from console.core.cause_life import CauseState, CauseStates
from console.core.confirm import Origin, Who
from console.core.faults import Unreachable
from console.core.history import RecordResult
from console.core.item import Condition
from console.core.session import Unavailable
from console.core.signature import signature_of
from console.history.recorder import MOST_CAUSES, HistoryRecorder, RepeatedSample, Sampler, snapshot_of
from console.history.samples import LEASE, Reading, SampleWriter
from console.history.schema import NO_TEXT
from console.history.store import HistoryStore, open_history
from console.testing.clock import FrozenClock
from console.testing.memory_queue import MemoryQueue
from console.trail.store import open_trail
from tests.history.world import MINUTE, START, reading

CAUSES = 5


def expected(minute: int) -> dict[str, int]:
    """The figures of one minute; the same in the recording process and in the test."""
    return {f"c{number}": (minute * 7 + number * 3) % 11 for number in range(CAUSES)}


RECORDER = """
import sys
from tests.history.test_recorder import expected
from tests.history.world import MINUTE, START, reading
from console.history.samples import SampleWriter
from console.history.store import open_history
history = open_history(sys.argv[1], read_only=False)
writer = SampleWriter(history.storage, sys.argv[2])
known = history.recorded()
first = minute = 0 if known is None else int((known[1] - START) / MINUTE) + 3
while True:
    writer.write([reading("jobs", {k: v for k, v in expected(minute).items() if v}), reading("mail", expected(minute))],
                 START + minute * MINUTE)
    if minute == first:
        print("ready", flush=True)
    minute += 1
"""


@pytest.mark.parametrize("kills", [4, pytest.param(100, marks=pytest.mark.campaign)])
def test_a_kill_leaves_whole_samples_only(sqlite_url: str, kills: int) -> None:
    chance = random.Random(kills)
    for number in range(kills):
        process = subprocess.Popen([sys.executable, "-c", RECORDER, sqlite_url, "one"], stdout=subprocess.PIPE,
                                   cwd=Path(__file__).parents[2])
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n", number
        time.sleep(chance.uniform(0.05, 0.4))
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    history = open_history(sqlite_url, read_only=True)
    known = history.recorded()
    assert known is not None
    minutes = int((known[1] - START) / MINUTE) + 1
    assert minutes > kills
    trends = history.cause_trends(START, START + minutes * MINUTE, minutes)
    gaps = 0
    for minute in range(minutes):
        shown = {name: trend.values[minute] for name, trend in trends.items()}
        if None in shown.values():
            assert set(shown.values()) == {None}
            gaps += 1
        else:
            assert shown == {name: 2 * value for name, value in expected(minute).items()}, minute
    assert gaps == 2 * (kills - 1)  # each process began three minutes later
    history.close()


def test_two_recorders_never_record_the_same_minute(url: str) -> None:
    """Both try every minute; whoever has the lease records, and the other takes over when it ends."""
    recorded: list[int] = []
    lock = threading.Lock()

    def record(name: str, first: int, last: int) -> None:
        history = open_history(url, read_only=False)
        writer = SampleWriter(history.storage, name)
        for minute in range(first, last):
            now = START + minute * MINUTE
            if writer.may_record(now) is RecordResult.RECORDED:
                result = writer.write([reading("jobs", {"aa11": minute + 1})], now)
                with lock:
                    recorded.extend([minute] if result is RecordResult.RECORDED else [])
        writer.release()
        history.close()

    threads = [threading.Thread(target=record, args=(name, 0, 25)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(recorded) == len(set(recorded))
    history = open_history(url, read_only=False)
    trend = history.cause_trends(START, START + 25 * MINUTE, 25)["aa11"]
    for minute in recorded:
        assert trend.values[minute] == minute + 1
    history.close()


def test_a_lease_ends_with_its_owner(file_history: HistoryStore) -> None:
    one, two = (SampleWriter(file_history.storage, name) for name in ("one", "two"))
    assert one.may_record(START) is RecordResult.RECORDED
    assert two.may_record(START + MINUTE) is RecordResult.ANOTHER_RECORDS
    assert two.write([reading("jobs", {})], START + MINUTE) is RecordResult.ANOTHER_RECORDS
    assert two.may_record(START + LEASE + MINUTE) is RecordResult.RECORDED
    assert one.may_record(START + LEASE + MINUTE) is RecordResult.ANOTHER_RECORDS
    two.release()
    assert one.may_record(START + LEASE + MINUTE) is RecordResult.RECORDED
    sharp = SampleWriter(file_history.storage, "three", is_dead=lambda owner: owner == "one")
    assert sharp.may_record(START + LEASE + MINUTE) is RecordResult.RECORDED
    assert file_history.storage.all("SELECT owner FROM @lease") == [("three",)]


def test_a_clock_that_is_set_back_records_nothing_twice(file_history: HistoryStore) -> None:
    writer = SampleWriter(file_history.storage, "me")
    for minute in range(20):
        writer.write([reading("jobs", {"aa11": minute + 1})], START + minute * MINUTE)
    assert writer.write([reading("jobs", {"aa11": 99})], START + 19 * MINUTE) is RecordResult.ALREADY_RECORDED
    for minute in range(10, 19):
        assert writer.write([reading("jobs", {"aa11": 99})], START + minute * MINUTE) is RecordResult.CLOCK_SET_BACK
    assert writer.write([reading("jobs", {"aa11": 21})], START + 20 * MINUTE) is RecordResult.RECORDED
    trend = file_history.cause_trends(START, START + 21 * MINUTE, 21)["aa11"]
    assert trend.values == tuple(range(1, 22))


def test_samples_of_a_clock_that_was_far_ahead_are_removed(file_history: HistoryStore) -> None:
    writer = SampleWriter(file_history.storage, "me")
    writer.write([reading("jobs", {"aa11": 5})], START)
    writer.write([reading("jobs", {"aa11": 7, "bb22": 1})], START + timedelta(days=9000))
    assert writer.write([reading("jobs", {"aa11": 6})], START + MINUTE) is RecordResult.RECORDED
    assert file_history.recorded() == (START, START + MINUTE)
    assert file_history.cause_trends(START, START + 2 * MINUTE, 2)["aa11"].values == (5, 6)


# --- sampling


class Away(MemoryQueue):
    def counts(self, *_: Any, **__: Any) -> Any:
        raise Unreachable("refused", where=self.name)


class Broken(MemoryQueue):
    def errors(self, *_: Any, **__: Any) -> Any:
        raise KeyError("a plugin's own mistake")


def queue(kind: type[MemoryQueue], name: str, failures: int, error: str = "ERR: boom", at: datetime = START) -> MemoryQueue:
    rows = {
        str(number): {"status": "failed", "attempts": 3, "error": error.replace("#", str(number)), "updated": at, "created": at}
        for number in range(failures)
    }
    return kind(name, rows, clock=FrozenClock(START))


def recorder(history: HistoryStore, *backends: Any, clock: FrozenClock | None = None) -> HistoryRecorder:
    writer = SampleWriter(history.storage, "me")
    return HistoryRecorder(history.storage, writer, Sampler(backends), clock or FrozenClock(START))


def test_a_system_that_is_away_or_broken_leaves_a_gap(file_history: HistoryStore) -> None:
    found = recorder(
        file_history, queue(MemoryQueue, "jobs", 3), queue(Away, "mail", 3), queue(Broken, "pay", 3),
        Unavailable("gone", "none", Unreachable("no plugin")),
    )
    assert found.record() is RecordResult.RECORDED
    assert set(found.faults) == {"mail", "pay", "gone"}
    assert found.answered == {"jobs"}
    then = file_history.snapshot(START)
    assert [(cause.count, cause.backends) for cause in then.causes] == [(3, (("jobs", 3),))]
    assert then.missing == ("gone", "mail")  # of the broken one the counts are known
    now = snapshot_of(found.readings, START)
    assert (set(now.systems), set(now.missing)) == ({"jobs", "pay"}, {"mail", "gone"})


def test_many_errors_are_sampled_and_marked(file_history: HistoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.history.recorder.MOST_ERRORS", 100)
    found = recorder(file_history, queue(MemoryQueue, "jobs", 400))
    assert found.record() is RecordResult.RECORDED
    (seen,) = found.readings
    assert (seen.sampled, [cause.count for cause in seen.causes or ()]) == (True, [400])
    then = file_history.snapshot(START)
    assert then.sampled == {"jobs"}
    assert file_history.cause_trends(START, START + MINUTE, 1)[signature_of("ERR: boom")].sampled


def test_counts_that_were_estimated_are_marked_in_the_past(file_history: HistoryStore) -> None:
    estimated = {Condition.TERMINAL: Count(4_000_000, exact=False, estimated=True), Condition.RETRYING: Count(0)}
    readings = [replace(reading("large", {}), counts=estimated), reading("small", {"a": 3})]
    assert SampleWriter(file_history.storage, "me").write(readings, START) is RecordResult.RECORDED
    then = file_history.snapshot(START)
    assert str(then.systems["large"].counts[Condition.TERMINAL]) == "~4000000"
    assert then.systems["small"].counts[Condition.TERMINAL] == Count(3)


def test_rare_causes_are_counted_together(file_history: HistoryStore) -> None:
    words = [f"ERR_{chr(65 + n // 26)}{chr(65 + n % 26)}: x" for n in range(MOST_CAUSES + 50)]
    rows = {str(n): {"status": "failed", "attempts": 3, "error": word, "updated": START} for n, word in enumerate(words)}
    found = recorder(file_history, MemoryQueue("jobs", rows, clock=FrozenClock(START)))
    assert found.record() is RecordResult.RECORDED
    then = file_history.snapshot(START)
    assert sum(cause.count for cause in then.causes) == len(words)
    assert (len(then.causes), then.causes[-1].overflow) == (MOST_CAUSES + 1, True)


def test_failures_without_error_text_stay_apart_from_rare_causes(file_history: HistoryStore) -> None:
    words = [f"ERR_{chr(65 + n // 26)}{chr(65 + n % 26)}: x" for n in range(MOST_CAUSES + 50)]
    rows = {str(n): {"status": "failed", "attempts": 3, "error": word, "updated": START} for n, word in enumerate(words)}
    rows |= {f"n{n}": {"status": "failed", "attempts": 3, "error": None, "updated": START} for n in range(70)}
    queue = MemoryQueue("jobs", rows, clock=FrozenClock(START))
    assert recorder(file_history, queue).record() is RecordResult.RECORDED
    live = snapshot_of(Sampler([queue]).read(START), START)
    for then in (live, file_history.snapshot(START)):
        unnamed = {cause.overflow: cause.count for cause in then.causes if cause.signature is None}
        assert unnamed[False] == 70
        assert sum(cause.count for cause in then.causes) == len(rows)
    assert not {"", NO_TEXT} & set(file_history.cause_trends(START - 60 * MINUTE, START + MINUTE, 2))
    assert not {"", NO_TEXT} & set(file_history.first_seen())


def test_the_budget_decides_what_is_read(file_history: HistoryStore) -> None:
    budget = ReadingBudget(share=0.0)  # nothing may be read by itself, once its cost is known
    clock = FrozenClock(START)
    writer = SampleWriter(file_history.storage, "me")
    sampler = Sampler([queue(MemoryQueue, "jobs", 3)], {"jobs": budget})
    found = HistoryRecorder(file_history.storage, writer, sampler, clock)
    assert found.record() is RecordResult.RECORDED
    clock.tick(MINUTE)
    found.record()
    (second,) = found.readings
    assert second == Reading("jobs")
    assert file_history.recorded() == (START, START)


@pytest.fixture
def states(tmp_path: Path) -> Iterator[tuple[CauseStates, FrozenClock]]:
    clock = FrozenClock(START)
    trail = open_trail(f"sqlite:///{tmp_path}/trail.db", read_only=False, anchor=None, clock=clock)
    yield CauseStates(trail, clock, Who(1, "ann"), Origin("host", "", "", 1, "0")), clock
    trail.close()


def test_a_week_in_which_a_regression_is_found_within_one_sample(
    file_history: HistoryStore, states: tuple[CauseStates, FrozenClock]
) -> None:
    """Samples every half hour for a week. What fails, what people decide and what the states then are."""
    causes, clock = states
    rows: dict[str, dict[str, Any]] = {}
    backend = MemoryQueue("jobs", rows, clock=clock)
    found = HistoryRecorder(
        file_history.storage, SampleWriter(file_history.storage, "me"),
        Sampler([backend], {"jobs": ReadingBudget(share=1.0)}), clock,
    )
    signature = signature_of("ERR: pool exhausted")

    def fail(number: int) -> None:
        rows[str(number)] = {"status": "failed", "attempts": 3, "error": "ERR: pool exhausted", "updated": clock.now()}

    def state() -> CauseState | None:
        then = file_history.snapshot(clock.now())
        shown = next((cause for cause in then.causes if cause.signature == signature), None)
        if shown is None:
            return None
        causes.read()
        return causes.life(shown, file_history.first_seen().get(signature)).state

    seen: list[tuple[int, CauseState | None]] = []
    for half_hour in range(7 * 48):
        match half_hour:
            case 10:
                fail(1)
            case 20:
                fail(2)
            case 70:
                causes.acknowledge(file_history.snapshot(clock.now() - timedelta(minutes=29)).causes[0])
            case 100:
                rows.clear()
            case 101:
                gone = file_history.snapshot(clock.now() - timedelta(minutes=59)).causes[0]
                causes.resolve(gone, "larger pool")
            case 250:
                fail(3)
            case _:
                pass
        clock.tick(timedelta(seconds=1))
        assert found.record() is RecordResult.RECORDED
        if not seen or seen[-1][1] is not state():
            seen.append((half_hour, state()))
        clock.tick(timedelta(minutes=30, seconds=-1))
    assert seen == [
        (0, None), (10, CauseState.NEW), (58, CauseState.ONGOING), (70, CauseState.ACKNOWLEDGED), (100, None),
        (250, CauseState.REGRESSED),
    ]


def test_a_sample_without_a_history_keeps_what_the_budget_does_not_allow_to_read_again() -> None:
    class Slow(MemoryQueue):
        asked, away = 0, False

        def counts(self, *given: Any, **more: Any) -> Any:
            self.asked += 1
            charge(10.0)
            if self.away:
                raise Unreachable("refused", where=self.name)
            return super().counts(*given, **more)

    slow, quick = queue(Slow, "slow", 3), queue(MemoryQueue, "quick", 2)
    assert isinstance(slow, Slow)
    budgets = {"slow": ReadingBudget(), "quick": ReadingBudget()}
    samples = RepeatedSample(Sampler([slow, quick], budgets))
    first = samples.read(START)
    again = samples.read(START + MINUTE)
    assert slow.asked == 1
    assert (again.systems["slow"].counts, again.missing) == (first.systems["slow"].counts, ())
    assert {cause.backends for cause in again.causes} == {(("slow", 3), ("quick", 2))}
    slow.away = True
    budgets["slow"].forget()
    for minute in (2, 3):
        then = samples.read(START + minute * MINUTE)
        assert (then.missing, then.faults) == (("slow",), {"slow": "slow: Cannot connect: refused"}), "it is not back because nobody has asked"
    assert slow.asked == 2
