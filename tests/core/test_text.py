from __future__ import annotations

import unicodedata
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.core.item import Condition
from console.core.text import (
    ago,
    and_list,
    countdown,
    csv_cell,
    duration,
    first_line,
    instant,
    neutralise,
    parse_duration,
    span,
)

HOSTILE = (
    "\x00\x07\x1b\x7f\x80\x9b\x9d\u200b\u200d\u202e\u2066\u2028\u2029\ufeff"
    "\U000e0041\ufe01\U000e0101\ud800\u3164\u034f"
)
anything = st.text(
    st.one_of(
        st.characters(),
        st.sampled_from(HOSTILE + "\n\r\t"),
        st.sampled_from("\u0301\u0489\ufe0f"),
        st.integers(0xD800, 0xDFFF).map(chr),
    ),
    max_size=60,
)


def shows(char: str) -> bool:
    return char.isprintable() or unicodedata.category(char) == "Zs"


@given(anything, st.booleans())
def test_nothing_unprintable_survives(text: str, multiline: bool) -> None:
    shown = neutralise(text, limit=10_000, multiline=multiline)
    assert all(shows(char) or (multiline and char == "\n") for char in shown)
    assert not set(shown) & (set(HOSTILE) | {"\r", "\t"})
    shown.encode()


@given(anything, st.booleans())
def test_what_is_harmless_stays_as_it_is(text: str, multiline: bool) -> None:
    shown = neutralise(text, limit=10_000, multiline=multiline)
    assert neutralise(shown, limit=10_000, multiline=multiline) == shown


@given(anything)
def test_no_more_than_four_marks_in_a_row(text: str) -> None:
    run = longest = 0
    for char in neutralise(text, limit=10_000):
        run = run + 1 if unicodedata.category(char)[0] == "M" and char not in "\ufe0e\ufe0f" else 0
        longest = max(longest, run)
    assert longest <= 4


@given(anything, st.integers(1, 40))
def test_it_is_cut_before_it_grows(text: str, limit: int) -> None:
    shown = neutralise(text, limit)
    assert len(shown) <= 10 * limit
    assert shown.endswith("…") or len(text) <= limit


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [b]markup[/b]", "plain [b]markup[/b]"),
        ("\x1b]52;c;aGk=\x07", "␛]52;c;aGk=␇"),
        ("a\x00b\x7f", "a␀b␡"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
        ("\U000e0041", "\\U000e0041"),
        ("\ud800", "\\ud800"),
        ("a\r\nb\tc", "a␍␊b␉c"),
        ("Grüße, 世界 ❤\ufe0f", "Grüße, 世界 ❤\ufe0f"),
        ("\ufe0f", "\\ufe0f"),
        ("a\ufe0f\ufe0f", "a\ufe0f\\ufe0f"),
        ("e" + "\u0301" * 4, "e" + "\u0301" * 4),
        ("e" + "\u0301" * 1000, "e" + "\u0301" * 4 + "⟨+194⟩…"),
        ("non\u00a0breaking", "non\u00a0breaking"),
        ("x" * 201, "x" * 199 + "…"),
        ("x" * 200, "x" * 200),
    ],
)
def test_a_cell(text: str, shown: str) -> None:
    assert neutralise(text) == shown


def test_several_lines() -> None:
    assert neutralise("a\r\nb\rc\n\td\x1b", multiline=True) == "a\nb␍c\n    d␛"


def test_more_code_points_than_are_remembered() -> None:
    many = "".join(map(chr, range(0x3400, 0x3400 + 6000)))
    assert neutralise(many + "\u202e", limit=10_000) == many + "\\u202e"


@pytest.mark.parametrize(
    ("text", "line"),
    [("", ""), (" \n\n  a b \r\nc", "a b"), ("one", "one"), ("one\rtwo", "one"), (" \n ", "")],
)
def test_first_line(text: str, line: str) -> None:
    assert first_line(text) == line


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r"])
def test_no_cell_is_a_formula(start: str) -> None:
    assert csv_cell(f"{start}1+1") == f"'{start}1+1"
    assert csv_cell(f"a{start}1") == f"a{start}1"
    assert csv_cell("") == ""


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("5m", 300), ("90s", 90), ("1h30m", 5400), ("2d", 172800), ("1w", 604800), ("250ms", 0.25), ("0s", 0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    [
        *("", "5", "m", "5 m", "5M", "-5m", "1.5h", "30m1h", "5m5m", "5mx", "٣m", "5m\n"),
        "9" * 20 + "d",
        "9" * 5000 + "s",
    ],
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration|too long"):
        parse_duration(text)


@given(st.integers(0, 10**13))
def test_a_duration_reads_back(milliseconds: int) -> None:
    given_span = timedelta(milliseconds=milliseconds)
    assert parse_duration(duration(given_span)) == given_span


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("90m", "1h30m"),
        ("60m", "1h"),
        ("24h", "1d"),
        ("30d", "30d"),
        ("14d", "2w"),
        ("0ms", "0s"),
        ("1500ms", "1s500ms"),
    ],
)
def test_durations_are_written_one_way(text: str, canonical: str) -> None:
    assert duration(parse_duration(text)) == canonical
    assert duration(-parse_duration("90m")) == "-1h30m"


@pytest.mark.parametrize(
    ("seconds", "shown", "since"),
    [
        (0, "0s", "now"),
        (0.4, "0s", "now"),
        (12, "12s", "12s ago"),
        (252, "4m 12s", "4m ago"),
        (242, "4m 02s", "4m ago"),
        (7500, "2h 05m", "2h ago"),
        (273600, "3d 4h", "3d ago"),
        (-252, "-4m 12s", "in 4m"),
        (999 * 86400 + 3600, "999d 1h", "999d ago"),
        (1000 * 86400, "2y", "2y ago"),
        (-2_912_122 * 86400, "-7978y", "in 7978y"),
    ],
)
def test_countdown_and_ago(seconds: float, shown: str, since: str) -> None:
    assert countdown(timedelta(seconds=seconds)) == shown
    assert ago(timedelta(seconds=seconds)) == since


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        ("5m", "5m", "5m"),
        ("45s", "75s", "45–75 s"),
        ("4m", "6m", "4–6 m"),
        ("30s", "5m", "30s–5m"),
        ("1h", "2d", "1–48 h"),
        ("0s", "10s", "0–10 s"),
        ("1500ms", "1h", "1s500ms–1h"),
    ],
)
def test_span(low: str, high: str, shown: str) -> None:
    assert span(parse_duration(low), parse_duration(high)) == shown


def test_instants_are_utc() -> None:
    assert instant(datetime(2026, 11, 1, 12, tzinfo=UTC)) == "2026-11-01T12:00:00Z"
    east = timezone(timedelta(hours=2))
    assert instant(datetime(2026, 11, 1, 12, 0, 0, 5, east)) == "2026-11-01T10:00:00.000005Z"
    assert instant(datetime.max.replace(tzinfo=timezone(timedelta(hours=-2)))).startswith("9999-12-31T23")
    with pytest.raises(ValueError, match="zone"):
        instant(datetime(2026, 11, 1))


def test_every_condition_has_its_own_symbol_of_one_column() -> None:
    symbols = [condition.symbol for condition in Condition]
    assert len(set(symbols)) == len(symbols)
    assert all(unicodedata.east_asian_width(symbol) in ("N", "Na") for symbol in symbols)


@pytest.mark.parametrize(
    ("words", "shown"),
    [([], ""), (["a"], "a"), (["a", "b"], "a and b"), (["a", "b", "c"], "a, b and c"), (("a", "b", "c", "d"), "a, b, c and d")],
)
def test_words_in_a_sentence(words: list[str], shown: str) -> None:
    assert and_list(words) == shown
