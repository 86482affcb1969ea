"""What was recorded is shown, from every level of the store; what was not recorded is never shown as data."""

from __future__ import annotations

import random
import stat
from datetime import timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from console.core.faults import HistoryUnavailable, ReadOnlyRefused, UsageFault
from console.core.history import RecordResult
from console.core.item import Condition
from console.history.packing import pack, two_of_each, unpack, unpack_one
from console.history.samples import Reading, SampleWriter
from console.history.store import HistoryStore, open_history
from console.history.thinning import thin
from tests.history.world import MINUTE, START, reading


def test_a_sample_is_shown_as_it_was(history: HistoryStore) -> None:
    writer = SampleWriter(history.storage, "me")
    assert writer.write([reading("jobs", {"aa11": 5, "bb22": 2}, retrying=3, due=9)], START) is RecordResult.RECORDED
    assert writer.write([reading("jobs", {"aa11": 8}, retrying=1)], START + MINUTE) is RecordResult.RECORDED
    then = history.snapshot(START)
    assert then.systems["jobs"].counts[Condition.TERMINAL].value == 7
    assert then.systems["jobs"].counts[Condition.RETRYING].value == 3
    assert then.systems["jobs"].upcoming is not None
    assert then.systems["jobs"].upcoming.counts[0] == 9
    assert [(one.signature, one.count) for one in then.causes] == [("aa11", 5), ("bb22", 2)]
    assert then.causes[0].sample == "ERR: it failed"
    later = history.snapshot(START + MINUTE)
    assert [(one.signature, one.count, one.backends) for one in later.causes] == [("aa11", 8, (("jobs", 8),))]
    assert history.recorded() == (START, START + MINUTE)


def test_a_gap_is_not_shown_as_data(history: HistoryStore) -> None:
    writer = SampleWriter(history.storage, "me")
    writer.write([reading("jobs", {"aa11": 5}), reading("mail", {"aa11": 1})], START)
    writer.write([reading("jobs", {"aa11": 6}), Reading("mail", fault="down")], START + 30 * MINUTE)
    trends = history.system_trends(START, START + 40 * MINUTE, 4)
    assert trends["jobs"].values == (5, None, None, 6)
    assert trends["mail"].values == (1, None, None, None)
    # The cause is in a system that was not read, so nobody knows how many there are.
    assert history.cause_trends(START, START + 40 * MINUTE, 4)["aa11"].values == (6, None, None, None)
    then = history.snapshot(START + 30 * MINUTE)
    assert (list(then.systems), then.missing) == (["jobs"], ("mail",))
    assert [one.count for one in then.causes] == [6]
    assert history.snapshot(START + 20 * MINUTE).missing == ("jobs", "mail")
    assert not history.snapshot(START + 20 * MINUTE).causes
    assert not history.snapshot(START - MINUTE).systems


def test_a_system_that_does_not_answer_is_known_at_once(history: HistoryStore) -> None:
    """Not only when its last figures are too old to be shown."""
    writer = SampleWriter(history.storage, "me")
    writer.write([reading("jobs", {"aa11": 5}), reading("mail", {"aa11": 1})], START)
    writer.write([reading("jobs", {"aa11": 5}), Reading("mail", fault="refused\x1b[2J")], START + MINUTE)
    writer.write([reading("jobs", {"aa11": 5}), Reading("mail")], START + 2 * MINUTE)  # was not asked
    for minute in (1, 2):
        then = history.snapshot(START + minute * MINUTE)
        assert (then.missing, list(then.faults)) == (("mail",), ["mail"])
        assert "\x1b" not in then.faults["mail"]
        assert then.systems["mail"].as_of == START  # its last figures are still shown, with their time
    assert history.snapshot(START).missing == ()
    writer.write([reading("jobs", {"aa11": 5}), reading("mail", {"aa11": 1})], START + 3 * MINUTE)
    then = history.snapshot(START + 3 * MINUTE)
    assert (then.missing, then.faults) == ((), {})


def test_only_changes_are_stored(file_history: HistoryStore) -> None:
    writer = SampleWriter(file_history.storage, "me")
    for minute in range(60):
        writer.write([reading("jobs", {"aa11": 5})], START + minute * MINUTE)
    assert file_history.storage.all("SELECT count(*) FROM @point") == [(2,)]  # terminal items, and the cause
    assert file_history.storage.all("SELECT count(*) FROM @coverage") == [(3,)]
    assert file_history.cause_trends(START, START + 60 * MINUTE, 6)["aa11"].values == (5,) * 6


def test_every_level_shows_what_a_plain_log_would(file_history: HistoryStore) -> None:
    """Five days of random figures with gaps, thinned on the way; the model is a list of all samples."""
    chance = random.Random(7)
    writer = SampleWriter(file_history.storage, "me")
    log: list[tuple[int, dict[str, int]]] = []
    figures = {f"c{number:03d}": 0 for number in range(6)}
    minutes = 5 * 24 * 60
    minute = 0
    while minute < minutes:
        for name in figures:
            if chance.random() < 0.3:
                figures[name] = chance.choice((0, 0, 3, 200, 70_000))
        present = {name: value for name, value in figures.items() if value}
        writer.write([reading("jobs", present)], START + minute * MINUTE)
        log.append((minute, dict(present)))
        if chance.random() < 0.02:
            thin(file_history.storage, START + minute * MINUTE)
        step = chance.choice((1, 1, 1, 3, 5)) if minute > minutes - 500 else chance.choice((4, 9, 13, 31))
        minute += step if chance.random() < 0.99 else chance.randrange(60, 400)
    end = START + log[-1][0] * MINUTE
    thin(file_history.storage, end)
    assert file_history.storage.all("SELECT DISTINCT step FROM @packed ORDER BY step") == [(10,), (60,)]
    widths = {"minutes": (MINUTE, 300), "tens": (10 * MINUTE, 24 * 7), "hours": (60 * MINUTE, 110)}
    for name, (width, steps) in widths.items():
        last = end.replace(minute=0)
        first = last - width * steps
        trends = file_history.cause_trends(first, last, steps)
        for signature in figures:
            expected = []
            for step in range(steps):
                low = (first + width * step - START) / MINUTE
                inside = [found for at, found in log if low <= at < low + width / MINUTE]
                expected.append(inside[-1].get(signature, 0) if inside else None)
            assert list(trends[signature].values) == expected, (name, signature)


class _Killed(Exception):
    """The process has ended here."""


@pytest.mark.parametrize("survived", range(7))
def test_a_kill_while_thinning_changes_nothing_that_is_shown(
    file_history: HistoryStore, monkeypatch: pytest.MonkeyPatch, survived: int
) -> None:
    """After every one of its transactions: no figure has become zero, and the next run finishes the work."""
    storage, writer = file_history.storage, SampleWriter(file_history.storage, "me")
    figures = {f"c{number}": number + 1 for number in range(6)}
    samples = [(START + minutes * MINUTE, [reading("jobs", figures)]) for minutes in range(0, 20 * 60, 2)]
    writer.write_all(samples)
    end = samples[-1][0]
    monkeypatch.setattr("console.history.thinning._AT_ONCE", 3)
    begin, left = storage.writing, [survived]

    def writing() -> Any:
        if not left[0]:
            raise _Killed
        left[0] -= 1
        return begin()

    def shown() -> dict[str, tuple[int | None, ...]]:
        trends = file_history.cause_trends(START, START + timedelta(hours=19), 19)
        return {name: trend.values for name, trend in trends.items()}

    expected = {name: (value,) * 19 for name, value in figures.items()}
    assert shown() == expected
    monkeypatch.setattr(storage, "writing", writing)
    with pytest.raises(_Killed):
        thin(storage, end)
    assert shown() == expected
    monkeypatch.setattr(storage, "writing", begin)
    thin(storage, end)
    assert shown() == expected
    assert storage.all("SELECT count(*) FROM @packed")[0][0]


@pytest.mark.parametrize("ahead", [timedelta(hours=25), timedelta(days=3), timedelta(days=20)], ids=str)
def test_a_clock_that_was_ahead_while_thinning_shows_no_zeros(history: HistoryStore, ahead: timedelta) -> None:
    """What it packed as old is unpacked when it is right again."""
    writer = SampleWriter(history.storage, "me")
    hours = 60
    samples = [
        (START + 5 * minutes * MINUTE, [reading("jobs", {"aa11": 7, "bb22": minutes // 12 + 1})])
        for minutes in range(hours * 12)
    ]
    writer.write_all(samples)
    now = samples[-1][0]
    thin(history.storage, now)
    truth = {"aa11": (7,) * hours, "bb22": tuple(range(1, hours + 1))}

    def shown() -> dict[str, tuple[int | None, ...]]:
        trends = history.cause_trends(START, START + timedelta(hours=hours), hours)
        return {name: trend.values for name, trend in trends.items()}

    assert shown() == truth
    assert writer.write([reading("jobs", {"cc33": 1})], now + ahead) is RecordResult.RECORDED
    thin(history.storage, now + ahead)
    right = now + 2 * MINUTE
    assert writer.write([reading("jobs", {"aa11": 9})], right) is RecordResult.RECORDED
    assert shown() == {**truth, "aa11": (*truth["aa11"][:-1], 9), "bb22": (*truth["bb22"][:-1], 0)} | {
        name: (0,) * hours for name in shown() if name == "cc33"
    }
    assert [(cause.signature, cause.count) for cause in history.snapshot(right).causes] == [("aa11", 9)]
    assert history.recorded() == (START, right)
    thin(history.storage, right + timedelta(hours=13))
    assert shown()["aa11"] == (*truth["aa11"][:-1], 9)


def test_a_past_time_shows_no_later_figure(file_history: HistoryStore) -> None:
    """Also where only one value per hour is kept: never the figure of the hour that was still to come."""
    writer = SampleWriter(file_history.storage, "me")
    for minute in range(0, 5 * 24 * 60, 15):
        writer.write([reading("jobs", {"aa11": minute + 1})], START + minute * MINUTE)
        if minute % 600 == 0:
            thin(file_history.storage, START + minute * MINUTE)
    thin(file_history.storage, START + timedelta(days=5))
    for minute in (61, 100, 1439, 1440, 1500, 4000, 4321, 6000, 7000, 7197):
        found = file_history.snapshot(START + minute * MINUTE)
        (shown,) = found.causes
        assert minute - 75 <= shown.count - 1 <= minute
        assert found.systems["jobs"].as_of <= START + minute * MINUTE


def test_packing_keeps_all_values() -> None:
    chance = random.Random(5)
    numbers = [chance.randrange(2**bits) for bits in (8, 16, 32, 63) for _ in range(24)]
    parts = [numbers[first : first + 24] for first in range(0, 96, 24)]
    for values in ([0], [1, 1, 1], [0, 127, 128, 2**40, 0, 0], list(range(300)), [2**80, 1], *parts):
        assert list(unpack(pack(values))) == values
        assert [unpack_one(pack(values), number) for number in range(len(values) + 1)] == [*values, 0]
    assert [pack(values)[0] for values in parts] == [1, 2, 4, 8]
    assert list(two_of_each([pack(values) for values in parts], 5, 23)) == [(values[5], values[23]) for values in parts]
    assert unpack(b"\0\xff\xff\xff\xff\x0f\x01") == [1] * 1_440
    assert list(unpack(b"\2\1\0\5")) == [1]
    for body in (b"", b"\0", b"\2", b"\x09\1", b"\0\xff"):
        assert (list(unpack(body)), unpack_one(body, 0)) == ([], 0)


def test_only_the_owner_can_read_the_file(file_history: HistoryStore, tmp_path: Path) -> None:
    SampleWriter(file_history.storage, "me").write([reading("jobs", {"aa11": 1})], START)
    path = tmp_path / "state" / "history.db"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_read_only_creates_and_changes_nothing(sqlite_url: str, tmp_path: Path) -> None:
    reader = open_history(sqlite_url, read_only=True)
    assert reader.recorded() is None
    assert not reader.snapshot(START).systems
    with pytest.raises(ReadOnlyRefused):
        reader.add_mark("v1", "ann", START)
    assert not list(tmp_path.iterdir())
    writable = open_history(sqlite_url, read_only=False)
    SampleWriter(writable.storage, "me").write([reading("jobs", {"aa11": 1})], START)
    writable.close()
    before = {path.name: path.read_bytes() for path in (tmp_path / "state").iterdir()}
    again = open_history(sqlite_url, read_only=True)
    assert len(again.snapshot(START).causes) == 1
    with pytest.raises(ReadOnlyRefused):
        SampleWriter(again.storage, "me").write([], START + MINUTE)
    again.close()
    assert {path.name: path.read_bytes() for path in (tmp_path / "state").iterdir()} == before


def test_marks(history: HistoryStore) -> None:
    history.add_mark("api v1.2.3\x1b[2J", "ann", START)
    history.add_mark("web v9", "bo", START + MINUTE)
    found = history.marks(START - MINUTE, START)
    assert [(mark.at, mark.by) for mark in found] == [(START, "ann")]
    assert "\x1b" not in found[0].text
    with pytest.raises(UsageFault):
        history.add_mark("  ", "ann", START)


def test_old_marks_are_forgotten(file_history: HistoryStore) -> None:
    writer = SampleWriter(file_history.storage, "me")
    file_history.add_mark("old", "ann", START)
    file_history.add_mark("recent", "ann", (START + timedelta(days=20)).astimezone(timezone(timedelta(hours=9))))
    for day in range(36):
        writer.write([reading("jobs", {"aa11": day + 1})], START + timedelta(days=day))
        thin(file_history.storage, START + timedelta(days=day))
    assert [mark.text for mark in file_history.marks(START, START + timedelta(days=99))] == ["recent"]


def test_another_format_is_refused(file_history: HistoryStore, sqlite_url: str) -> None:
    with file_history.storage.writing() as transaction:
        transaction.run("UPDATE @history_schema SET version = 99")
    other = open_history(sqlite_url, read_only=False)
    with pytest.raises(HistoryUnavailable, match="format 99"):
        other.recorded()
    other.close()


def test_without_errors_no_text_is_kept(file_history: HistoryStore) -> None:
    SampleWriter(file_history.storage, "me", keep_errors=False).write([reading("jobs", {"aa11": 1})], START)
    assert file_history.storage.all("SELECT head FROM @cause") == [(None,)]
    assert file_history.snapshot(START).causes[0].sample == ""


def test_going_back_and_forth_stays_within_what_is_recorded(file_history: HistoryStore) -> None:
    writer = SampleWriter(file_history.storage, "me")
    assert file_history.step(START, -10 * MINUTE) is None
    for minute in (0, 60):
        writer.write([reading("jobs", {"aa11": 1})], START + minute * MINUTE)
    last, step = START + 60 * MINUTE, 10 * MINUTE
    assert file_history.step(last + timedelta(days=2), -step) == last
    assert file_history.step(last, -step) == last - step
    assert file_history.step(START + MINUTE, -step) == START
    assert file_history.step(START, -step) is None
    assert file_history.step(START, step) == START + step
    assert file_history.step(last - MINUTE, step) == last
    assert file_history.step(last, step) is None
    assert file_history.step(START - timedelta(days=1), step) == START
