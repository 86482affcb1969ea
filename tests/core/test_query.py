from __future__ import annotations

import fnmatch
import string
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.core.faults import QueryFault, UsageFault
from console.core.item import NEEDS_ATTENTION, Condition, Item, ItemKey, Verdict, Window
from console.core.query import (
    COMPARISONS,
    Cursor,
    Field,
    Filter,
    Glob,
    Op,
    Page,
    Sort,
    SortField,
    Term,
    Value,
)
from console.core.signature import signature_of

NOW = datetime(2026, 11, 10, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def item(**changed: Any) -> Item:
    condition = changed.pop("condition", Condition.FAILED)
    next_at = changed.pop("next_at", None)
    recoverable = changed.pop("recoverable", None)
    parts: dict[str, Any] = {
        "key": ItemKey("queue", ("job 1",)),
        "type": "ANALYZE_A",
        "native_status": "FAILED",
        "attempts": 3,
        "max_attempts": 4,
        "error": "Rate limit 100%_x",
        "created_at": NOW - 3 * HOUR,
        "updated_at": NOW - HOUR,
        "read_at": NOW,
    }
    window = Window.at(next_at) if next_at else None
    return Item(verdict=Verdict(condition, "", window, recoverable=recoverable), **(parts | changed))


# --- text and back ------------------------------------------------------------------------------------

pieces = st.text(st.one_of(st.sampled_from('ab* ,"\\:-~<\n\t%'), st.characters()), max_size=6)
some = pieces.filter(bool)
globs = st.tuples(pieces, st.lists(some, max_size=2), pieces).map(lambda p: Glob((p[0], *p[1], p[2])))
times = st.one_of(
    st.integers(0, 10**10).map(lambda n: timedelta(milliseconds=n)),
    st.datetimes(timezones=st.just(UTC)),
    st.datetimes(timezones=st.just(UTC)).map(
        lambda at: at.replace(hour=0, minute=0, second=0, microsecond=0)
    ),
)
lower_globs = st.text("abc", min_size=1, max_size=3).map(lambda text: Glob((text, "")))


def several(value: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Value, ...]]:
    return st.lists(value, min_size=1, max_size=3).map(tuple)


def terms_of(
    fields: list[Field], ops: list[Op], values: st.SearchStrategy[tuple[Value, ...]]
) -> st.SearchStrategy[Term]:
    return st.builds(Term, st.sampled_from(fields), st.sampled_from(ops), values, st.booleans())


ORDERING = list(COMPARISONS)
TEXTUAL = [Field.TYPE, Field.STATUS, Field.KEY, Field.ERROR]
TIMES = [Field.CREATED, Field.UPDATED, Field.NEXT]
terms = st.one_of(
    terms_of([Field.BACKEND], [Op.EQUALS], several(st.one_of(st.just("queue-1"), globs))),
    terms_of([Field.CONDITION], [Op.EQUALS], several(st.one_of(st.sampled_from(Condition), lower_globs))),
    terms_of(TEXTUAL, [Op.EQUALS], several(st.one_of(pieces, globs))),
    terms_of([*TEXTUAL, Field.TEXT], [Op.CONTAINS], several(some)),
    terms_of([Field.CAUSE], [Op.EQUALS], several(st.text("0123456789abcdef", min_size=4, max_size=12))),
    terms_of([Field.ATTEMPTS], [Op.EQUALS], several(st.integers(-5, 2**31 - 1))),
    terms_of([Field.ATTEMPTS], ORDERING, st.tuples(st.integers(-5, 2**31 - 1))),
    terms_of(TIMES, ORDERING, st.tuples(times)),
    terms_of([Field.RECOVERABLE], [Op.EQUALS], several(st.booleans())),
)
filters = st.lists(terms, max_size=4).map(lambda some: Filter(tuple(some)))


@given(filters)
def test_a_filter_reads_back_as_itself(given_filter: Filter) -> None:
    assert Filter.parse(str(given_filter)) == given_filter
    assert "\n" not in str(given_filter)


@given(st.text(st.one_of(st.sampled_from('abkey:~<>=,-"\\* 0123TZ'), st.characters()), max_size=30))
def test_any_text_parses_or_names_the_column(text: str) -> None:
    try:
        parsed = Filter.parse(text)
    except QueryFault as fault:
        assert 1 <= fault.column <= len(text) + 1
        assert fault.fix
        assert f" (column {fault.column})" in str(fault)
        assert "\n" not in str(fault)
    else:
        assert Filter.parse(str(parsed)) == parsed


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("  ", ""),
        ("backend:queue  condition:terminal,STUCK", "backend:queue condition:terminal,stuck"),
        ('error~"rate limit" type:ANALYZE*', 'error~"rate limit" type:ANALYZE*'),
        ('type:"a*b" type:a**b type:"a "*', 'type:"a*b" type:a*b type:"a "*'),
        ("Updated<120m next>=90s", "updated<2h next>=1m30s"),
        ("created>2026-11-01T00:00Z", "created>2026-11-01"),
        ("created>2026-11-01T12:00", "created>2026-11-01T12:00Z"),
        ("created>2026-11-01T12:00:05+02:00", "created>2026-11-01T10:00:05Z"),
        ("recoverable:No recoverable:true", "recoverable:no recoverable:yes"),
        ("cause:7F3A", "cause:7f3a"),
        ("-error~timeout -timeout", "-error~timeout -timeout"),
        ("text~word 'quoted' 10:30 /api:x", "word 'quoted' 10:30 /api:x"),
        ('"key:x" "-x" -"-x"', '"key:x" "-x" -"-x"'),
        ("a,b", "a,b"),
        ('key:queue/a%2Fb error:""', 'key:queue/a%2Fb error:""'),
        (r'error~"a\"b\\c\n"', r'error~"a\"b\\c\n"'),
        (r"error~C:\x", r'error~"C:\\x"'),
        ("error~a*b", 'error~"a*b"'),
        ("-cause:*", "-cause:*"),
    ],
)
def test_canonical_text(text: str, canonical: str) -> None:
    assert str(Filter.parse(text)) == canonical
    assert Filter.parse(canonical) == Filter.parse(text)


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("condition:failed eror~x", 18, "Unknown field 'eror' (column 18). Did you mean 'error'?"),
        ("http://x", 1, "put it in quotes"),
        ("zzz:1", 1, "Fields: backend, condition"),
        ("condition:faild", 11, "Unknown condition 'faild' (column 11). Did you mean 'failed'?"),
        ("condition:failed,zzz", 18, "Conditions: waiting, running"),
        ("condition:", 11, "Missing value after 'condition:'"),
        ("type:a, b", 8, "Missing value after ','"),
        (",a", 1, "Missing value before ','"),
        ('error~"abc', 7, "Unclosed quote"),
        (r'error~"a\qb"', 9, r"Unknown escape '\q'"),
        ('error~"abc\\', 11, "Unknown escape"),
        ("- a", 1, "Nothing to negate"),
        ("x --a", 3, "Nothing to negate"),
        ("-", 1, "Nothing to negate"),
        ('error~""', 7, "Nothing to search for"),
        ('x ""', 3, "Nothing to search for"),
        ("attempts~3", 1, "Use attempts: attempts<"),
        ("type>3", 1, "Use type: type~"),
        ("condition~f", 1, "Use condition:"),
        ("updated:2h", 1, "Use updated< updated<="),
        ("attempts>3,4", 12, "takes one value"),
        ("attempts:x", 10, "Write a whole number"),
        ("attempts:99999999999", 10, "Write a whole number"),
        ("attempts:2147483648", 10, "Write a whole number"),
        ("attempts:٣", 10, "Write a whole number"),
        ("updated<soon", 9, "Write a duration"),
        ("updated<2026-13-01", 9, "is not a time"),
        ("updated<0001-01-01T00:00+02:00", 9, "is not a time"),
        ("cause:7f3", 7, "4 to 12 hex digits"),
        ("cause:7f3a*", 7, "4 to 12 hex digits"),
        ("recoverable:maybe", 13, "yes or no"),
        ("backend:My_Queue", 9, "is not a backend name"),
    ],
)
def test_a_mistake_is_one_line_with_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(QueryFault) as caught:
        Filter.parse(text)
    assert caught.value.column == column
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["type:a key:" + ",".join(map(str, range(500))), "type:a " + "-error~x " * 500])
def test_more_than_a_database_bears_is_refused(text: str) -> None:
    with pytest.raises(QueryFault, match="More than 500 values"):
        Filter.parse(text)
    assert Filter.parse(text.removeprefix("type:a "))


def test_a_long_mistake_is_cut() -> None:
    with pytest.raises(QueryFault) as caught:
        Filter.parse("condition:" + "x" * 10_000)
    assert len(str(caught.value)) < 300


def test_the_column_of_a_term_is_not_part_of_what_it_says() -> None:
    (late,) = Filter.parse("   type:x").terms
    assert late.column == 4
    assert late == Term(Field.TYPE, Op.EQUALS, ("x",))
    assert hash(late) == hash(Term(Field.TYPE, Op.EQUALS, ("x",)))


# --- meaning ------------------------------------------------------------------------------------------

LIMITED = signature_of("Rate limit 100%_x")
MATCHING = [
    ("backend:queue", {}, True),
    ("backend:qu*", {}, True),
    ("backend:other", {}, False),
    ("-backend:other", {}, True),
    ("condition:failed", {}, True),
    ("condition:F*", {}, True),
    ("condition:stuck,done", {}, False),
    ("type:ANALYZE*", {}, True),
    ("type:analyze*", {}, False),
    ('type:"ANALYZE*"', {}, False),
    ("type~lyze_a", {}, True),
    ("type~lyze%", {}, False),
    ("status:FAILED", {}, True),
    ("status:failed", {}, False),
    ("key:queue/job%201", {}, True),
    ("key:job%201", {}, True),
    ('key:"job 1"', {}, False),
    ("key:queue/*", {}, True),
    ("key~QUEUE/JOB", {}, True),
    ("error~RATE", {}, True),
    ("error~0%_X", {}, True),
    ("error~0_%", {}, False),
    ("error~nope,limit", {}, True),
    ("error~ä", {"error": "Ä"}, False),
    ("error~ÄB", {"error": "Äb"}, True),
    ("error~x", {"error": None}, False),
    ("-error~x", {"error": None}, True),
    ("error:*", {"error": None}, False),
    ("error:*", {"error": ""}, True),
    (f"cause:{LIMITED[:4]}", {}, True),
    (f"cause:{LIMITED.upper()}", {}, True),
    (f"cause:{LIMITED}", {"error": "other"}, False),
    ("cause:*", {}, True),
    ("-cause:*", {"error": ""}, True),
    ("attempts:3", {}, True),
    ("attempts:1,2", {}, False),
    ("attempts>=3", {}, True),
    ("attempts>3", {}, False),
    ("attempts<=3", {}, True),
    ("attempts<3", {}, False),
    ("updated<2h", {}, True),
    ("updated<1h", {}, False),
    ("updated<=1h", {}, True),
    ("updated>30m", {}, True),
    ("created>2h", {}, True),
    ("created>3h", {}, False),
    ("updated<2026-11-10", {}, False),
    ("updated>=2026-11-10T11:00Z", {}, True),
    ("updated>2026-11-10T11:00Z", {}, False),
    ("created<2h", {"created_at": None}, False),
    ("-created<2h", {"created_at": None}, True),
    ("next<15m", {"next_at": NOW + timedelta(minutes=10)}, True),
    ("next<15m", {"next_at": NOW + timedelta(minutes=15)}, False),
    ("next<15m", {"next_at": NOW - HOUR}, True),
    ("next<0s", {"next_at": NOW - HOUR}, True),
    ("next>2026-11-11", {"next_at": NOW + 24 * HOUR}, True),
    ("next<15m", {}, False),
    ("-next<15m", {}, True),
    ("recoverable:yes", {"recoverable": True}, True),
    ("recoverable:no", {"recoverable": True}, False),
    ("recoverable:no", {}, False),
    ("-recoverable:no", {}, True),
    ("LIMIT", {}, True),
    ('"job 1"', {}, True),
    ("order-7", {}, True),
    ("queue", {}, False),
    ("-order-7", {}, False),
    ("limit attempts>5", {}, False),
    ("", {}, True),
]


@pytest.mark.parametrize(("text", "changed", "expected"), MATCHING)
def test_matching(text: str, changed: dict[str, Any], expected: bool) -> None:
    assert Filter.parse(text).matches(item(**changed), NOW, references=["ORDER-7"]) is expected


@given(terms)
def test_a_term_or_its_negation_holds(term: Term) -> None:
    negated = Term(term.field, term.op, term.values, not term.negated)
    for one in (item(), item(error=None, created_at=None, updated_at=None)):
        assert term.matches(one, NOW) != negated.matches(one, NOW)


@given(st.text("ab*", max_size=6), st.text("ab", max_size=8))
def test_globs_match_as_globs_do(pattern: str, text: str) -> None:
    if "*" in pattern:
        (term,) = Filter.parse(f"type:{pattern}").terms
        assert term.matches(item(type=text), NOW) == fnmatch.fnmatchcase(text, pattern)


# --- parts of a filter --------------------------------------------------------------------------------


def test_for_a_backend() -> None:
    asked = Filter.parse("backend:queue,fi* -backend:files-2 attempts>1")
    assert asked.for_backend("queue") == Filter.parse("attempts>1")
    assert asked.for_backend("files") == Filter.parse("attempts>1")
    assert asked.for_backend("files-2") is None
    assert asked.for_backend("steps") is None


@pytest.mark.parametrize(
    ("text", "conditions"),
    [
        ("type:x", set(NEEDS_ATTENTION)),
        ("condition:*", set(Condition)),
        ("condition:failed,stuck", {Condition.FAILED, Condition.STUCK}),
        ("condition:failed,stuck -condition:stuck", {Condition.FAILED}),
        ("-condition:done", set(Condition) - {Condition.DONE}),
        ("condition:failed condition:done", set()),
        ("condition:r*", {Condition.RUNNING, Condition.RETRYING}),
    ],
)
def test_conditions(text: str, conditions: set[Condition]) -> None:
    assert Filter.parse(text).conditions() == conditions


@pytest.mark.parametrize(
    ("text", "narrows"),
    [
        ("", False),
        ("condition:*", False),
        (f"condition:{','.join(Condition)}", False),
        ("condition:* type:* backend:* key:*", False),
        ("condition:failed", True),
        ("-condition:failed", True),
        ("-type:*", True),
        ("error:*", True),
        ("cause:*", True),
        ("type:a*", True),
        ("word", True),
        ("attempts>=0", True),
    ],
)
def test_what_narrows(text: str, narrows: bool) -> None:
    assert Filter.parse(text).narrows is narrows


def test_taking_apart_and_putting_together() -> None:
    both = Filter.parse("type:a condition:done").and_(Filter.parse("   type:a word"))
    assert str(both) == "type:a condition:done word"
    assert both.without(Field.TYPE) == Filter.parse("condition:done word")
    assert both.terms_for(Field.TEXT) == Filter.parse("word").terms


# --- pages --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sort"),
    [
        ("", Sort()),
        ("updated", Sort(SortField.UPDATED)),
        ("-updated", Sort(SortField.UPDATED)),
        ("updated:asc", Sort(SortField.UPDATED, descending=False)),
        ("Updated:DESC", Sort(SortField.UPDATED)),
        ("next", Sort(SortField.NEXT, descending=False)),
        ("-next", Sort(SortField.NEXT)),
        ("id:desc", Sort(SortField.ID)),
    ],
)
def test_orders(text: str, sort: Sort) -> None:
    assert Sort.parse(text) == sort
    assert Sort.parse(str(sort)) == sort


@pytest.mark.parametrize(
    "text", ["-", "age", "updated:", "updated:up", "-updated:asc", ":", string.printable]
)
def test_what_is_no_order(text: str) -> None:
    with pytest.raises(UsageFault, match="updated, created") as caught:
        Sort.parse(text)
    assert "\n" not in str(caught.value)


def test_pages_and_cursors_are_values() -> None:
    cursor = Cursor(None, True, ("queue", 1))
    assert Page((item(),), cursor, None) == Page((item(),), Cursor(None, True, ("queue", 1)), None)
    assert Page((), None, None).scanned is None
