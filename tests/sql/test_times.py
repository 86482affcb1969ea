from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from console.sql.times import Aware, IsoText, Naive

BERLIN = ZoneInfo("Europe/Berlin")
instants = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))
offsets = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(instants, st.sampled_from([UTC, BERLIN]))
def test_iso_text_reads_back(at: datetime, zone: Any) -> None:
    style = IsoText(zone)
    assert style.decode(style.encode(at)) == at


@given(instants, instants)
def test_iso_text_in_utc_compares_as_its_instants_do(one: datetime, other: datetime) -> None:
    style = IsoText()
    assert (style.encode(one) < style.encode(other)) == (one < other)


@given(instants)
def test_aware_reads_back(at: datetime) -> None:
    assert Aware().decode(Aware().encode(at)) == at
    assert Aware().decode(at.replace(tzinfo=None)) is None


@given(instants)
def test_naive_reads_back_but_for_the_repeated_hour(at: datetime) -> None:
    style = Naive(BERLIN)
    raw = style.encode(at)
    assert raw.tzinfo is None
    back = style.decode(raw)
    assert back == at or (style.ambiguous(raw) and back == at - timedelta(hours=1))


CHANGES = (datetime(2026, 3, 29, 1, tzinfo=UTC), datetime(2026, 10, 25, 1, tzinfo=UTC))
"""When clocks are changed in Berlin."""


@given(st.sampled_from(CHANGES), st.timedeltas(timedelta(hours=-3), timedelta(hours=3)), st.timedeltas(timedelta(0), timedelta(days=2)))
def test_a_delay_is_as_long_as_it_is_when_clocks_are_changed_meanwhile(change: datetime, before: timedelta, delay: timedelta) -> None:
    at = change + before
    for style in (IsoText(BERLIN), IsoText(), Aware()):
        began, ends = (style.decode(style.encode(moment)) for moment in (at, at + delay))
        assert (began, ends) == (at, at + delay)
        assert ends - began == delay
    naive = Naive(BERLIN)
    stored = [naive.encode(moment) for moment in (at, at + delay)]
    began, ends = map(naive.decode, stored)
    wrong = ends - began - delay  # a column without a zone cannot tell the two hours apart: never by more than that one
    assert wrong == timedelta(0) or (abs(wrong) == timedelta(hours=1) and any(map(naive.ambiguous, stored)))


@pytest.mark.parametrize(
    ("raw", "read", "ambiguous"),
    [
        (datetime(2026, 1, 10, 12), datetime(2026, 1, 10, 11, tzinfo=UTC), False),
        (datetime(2026, 7, 10, 12), datetime(2026, 7, 10, 10, tzinfo=UTC), False),
        (datetime(2026, 10, 25, 1, 59), datetime(2026, 10, 24, 23, 59, tzinfo=UTC), False),
        (datetime(2026, 10, 25, 2, 30), datetime(2026, 10, 25, 0, 30, tzinfo=UTC), True),
        (datetime(2026, 10, 25, 3, 0), datetime(2026, 10, 25, 2, 0, tzinfo=UTC), False),
        (datetime(2026, 3, 29, 1, 59), datetime(2026, 3, 29, 0, 59, tzinfo=UTC), False),
        (datetime(2026, 3, 29, 2, 30), datetime(2026, 3, 29, 1, 30, tzinfo=UTC), False),  # the hour that never was
        (datetime(2026, 3, 29, 3, 0), datetime(2026, 3, 29, 1, 0, tzinfo=UTC), False),
    ],
)
def test_the_hours_a_clock_repeats_and_skips(raw: datetime, read: datetime, ambiguous: bool) -> None:
    style = Naive(BERLIN)
    assert style.decode(raw) == read
    assert style.ambiguous(raw) is ambiguous


@pytest.mark.parametrize("style", [IsoText(), IsoText(BERLIN), Naive(), Naive(BERLIN), Aware()],
                         ids=["text", "text-berlin", "naive", "naive-berlin", "aware"])
@pytest.mark.parametrize("at", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_the_ends_of_the_calendar_can_be_bound(style: Any, at: datetime) -> None:
    assert style.encode(at) is not None
    assert style.bound(at) is not None


@pytest.mark.parametrize("raw", [None, 5, 1.5, b"2026-01-01T00:00:00+00:00", "", "soon", "2026-02-30T00:00:00", "12:30",
                                 "0001-01-01T00:00:00+23:00", "\udcff", "2026-01-01é00:00:00+00:00"])
def test_what_is_no_time_is_none(raw: Any) -> None:
    for style in (IsoText(), Naive(), Aware()):
        assert style.decode(raw) is None
    assert not Naive().ambiguous(raw)


FORMS = ["{:%Y-%m-%dT%H:%M:%S}+00:00", "{:%Y-%m-%dT%H:%M:%S}Z", "{:%Y-%m-%d %H:%M:%S}+00:00", "{:%Y-%m-%dT%H:%M:%S}",
         "{:%Y-%m-%dT%H:%M}", "{:%Y%m%dT%H%M%S}+00:00", "{:%G-W%V-%u}"]
stored = st.one_of(
    st.builds(lambda at, form: form.format(at), instants, st.sampled_from(FORMS)),
    st.builds(lambda at, zone: at.astimezone(zone).isoformat(), instants, offsets),
    instants.map(datetime.isoformat),
    st.sampled_from([None, "", "soon", "2026-02-30T00:00:00+00:00", "2026-13-01T00:00:00+00:00", b"2026-01-01", 7, b"\xff", "2026-01-01é00:00:00+00:00"]),
    st.text(max_size=12),
)


@given(st.lists(stored, min_size=1, max_size=6), instants)
def test_sqlite_compares_and_sorts_stored_text_as_the_instants_it_means(values: list[Any], edge: datetime) -> None:
    """Whatever is in the column: exactly in a filter; in a sort, all but garbage in the usual form."""
    style = IsoText()
    column: Any = sa.column("x")
    texts = {
        name: str(sa.select(expression).compile(dialect=sa.create_engine("sqlite://").dialect, compile_kwargs={"literal_binds": True})).removeprefix("SELECT ").rpartition(" AS ")[0]
        for name, expression in (("compared", style.compared(column)), ("ordered", style.ordered(column)))
    }
    with closing(sqlite3.connect(":memory:")) as connection:
        for name, function in style.functions.items():
            connection.create_function(name, 1, function, deterministic=True)
        connection.execute("CREATE TABLE t (x)")
        connection.executemany("INSERT INTO t VALUES (?)", [(value,) for value in values])
        decoded = [style.decode(value) for value in values]
        later = connection.execute(f"SELECT rowid FROM t WHERE {texts['compared']} > ?", (style.bound(edge),)).fetchall()
        assert [n for (n,) in later] == [n for n, at in enumerate(decoded, 1) if at is not None and at > edge]
        order = connection.execute(f"SELECT rowid FROM t ORDER BY {texts['ordered']} NULLS LAST").fetchall()
        usual = [decoded[n - 1] for (n,) in order if not str(values[n - 1]).startswith(("2026-02-30", "2026-13"))]
        times = [at for at in usual if at is not None]
        assert usual == sorted(times) + [None] * (len(usual) - len(times))
