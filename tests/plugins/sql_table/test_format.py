"""Features of the mapping format that no preset uses, each on a real table."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import sleep
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import postgresql

from console.core.backend import Attempts, Count, Operation, PageRequest
from console.core.faults import WrongSchema
from console.core.item import Item, ItemKey
from console.core.policy import PolicyOverride
from console.core.ports import Never
from console.core.query import Cursor, Field, Filter, Op, Sort, Term
from console.sql.layout import Layout
from console.sql.paging import given_for
from plugins.sql_table.error_text import fields_by_pattern
from plugins.sql_table.fragments import formula, fragment
from plugins.sql_table.mapping import ErrorSource
from tests.plugins.postgres_analyses.operating import operating
from tests.plugins.sql_table.world import NOW, Queue, mapping, postgres_queue, sqlite_queue

EVERYTHING = Filter.parse("condition:*")
RESET = Operation(attempts=Attempts.RESET)


def items(queue: Queue, now: datetime = NOW, filter: Filter = EVERYTHING, **more: Any) -> list[Item]:
    """In the order of their keys."""
    with closing(queue.open(**more)) as backend:
        found = backend.page(PageRequest(filter, now)).items
    return sorted(found, key=lambda item: [(len(part), part) for part in item.key.parts])


def keyed(key: ItemKey) -> Filter:
    return Filter((Term(Field.KEY, Op.EQUALS, (str(key),)), *EVERYTHING.terms))


def conditions(queue: Queue, now: datetime = NOW, **more: Any) -> list[str]:
    return [item.condition.value for item in items(queue, now, **more)]


# --- expressions ------------------------------------------------------------------------------------------------

PERCENT = """
table: jobs
key: id
status:
  cases:
    - {name: 'rate %s', condition: terminal, when: "job.error LIKE '%rate%' AND job.id % 2 = 1"}
    - {name: seen, condition: done, when: "EXISTS (SELECT 1 FROM {seen} s WHERE s.job_id = job.id)"}
    - {name: rest, condition: ready, when: "1 = 1"}
error: error
requeue:
  conditions: [terminal]
  guard: [id]
  set: {flag: {column: error, read: "job.error LIKE '%rate%'", write: "CASE WHEN :value THEN error ELSE '100% ok: :value' END", value: false}}
  attempts: {keep: {effect: last_try}}
"""
PERCENT_DDL = """
CREATE TABLE jobs (id INTEGER PRIMARY KEY, error TEXT); CREATE TABLE seen (job_id INTEGER);
INSERT INTO jobs VALUES (1, 'a rate limit'), (2, 'a rate limit'), (3, NULL); INSERT INTO seen VALUES (3);
"""


EXPIRING = """
table: jobs
key: id
status:
  cases: [{name: dead, condition: terminal, when: "1 = 1"}]
times: epoch
expires: kept_until
"""


def test_what_is_deleted_soon_is_counted(tmp_path: Path) -> None:
    rows = ", ".join(f"({n}, {(NOW + timedelta(hours=n)).timestamp():.0f})" for n in range(1, 41))
    ddl = f"CREATE TABLE jobs (id INTEGER PRIMARY KEY, kept_until INTEGER); INSERT INTO jobs VALUES {rows}, (99, NULL);"
    with sqlite_queue(tmp_path / "q.db", ddl, mapping(EXPIRING)) as queue, closing(queue.open()) as backend:
        assert backend.expiring(NOW, timedelta(hours=5, minutes=1)) == Count(5)
    without = "\n".join(EXPIRING.splitlines()[:-1])
    with sqlite_queue(tmp_path / "other.db", ddl, mapping(without)) as queue, closing(queue.open()) as backend:
        assert backend.expiring(NOW, timedelta(days=1)) is None


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_percents_colons_and_other_tables_in_expressions(kind: str, tmp_path: Path) -> None:
    made = sqlite_queue(tmp_path / "x.db", PERCENT_DDL, mapping(PERCENT)) if kind == "sqlite" else postgres_queue(
        PERCENT_DDL, mapping(PERCENT))
    with made as queue, operating(queue.open(), tmp_path) as ann:
        assert [(i.native_status, i.condition.value) for i in items(queue)] == [
            ("rate %s", "terminal"), ("rest", "waiting"), ("seen", "done")
        ]
        assert ann.outcomes(ann.requeue(1)) == {("applied", ""): 1}
        assert queue.one("SELECT error FROM jobs WHERE id = 1") == ("100% ok: :value",)


# --- times --------------------------------------------------------------------------------------------------------

MIXED = """
table: jobs
key: id
status: {column: status, ready: [new], running: [busy], failed: [bad]}
attempts: tries
next_run: due
created: made
updated: changed
time_zone: Europe/Berlin
requeue:
  guard: [status, tries]
  set: {status: new, due: {time: due}, changed: {time: now}, coarse: {time: now}}
  attempts: {keep: {effect: last_try}}
"""


def test_columns_that_store_times_differently_are_read_as_one(tmp_path: Path) -> None:
    """With a zone, without one in Berlin, and to the second only."""
    ddl = (
        "CREATE TABLE jobs (id int PRIMARY KEY, status text, tries int, due timestamptz, made timestamp, changed timestamp,"
        " coarse timestamp(0));"
        "INSERT INTO jobs VALUES (1, 'bad', 3, '2026-11-10 12:00+00', '2026-11-10 13:00', '2026-07-10 14:00', NULL)"
    )
    with postgres_queue(ddl, mapping(MIXED)) as queue, operating(queue.open(), tmp_path) as ann:
        (item,) = items(queue)
        assert item.created_at == NOW
        assert item.updated_at == datetime(2026, 7, 10, 12, tzinfo=UTC)
        override = ann.requeue(1)
        assert ann.outcomes(override) == {("applied", ""): 1}
        due, changed, coarse = queue.one("SELECT due, changed AT TIME ZONE 'Europe/Berlin', coarse FROM jobs")
        assert due == changed
        assert coarse.microsecond == 0
        ann.apply(ann.operations.undo(override.override_id))
        assert queue.one("SELECT status, coarse FROM jobs") == ("bad", None)


def test_seconds_of_any_type_of_number_are_times() -> None:
    options = mapping(
        "table: jobs\nkey: id\nstatus: {column: status, running: [busy]}\ntimes: epoch\nstuck_after: 1h\nupdated: at\n"
    )
    began = datetime(2026, 11, 10, 10, 0, 0, 500_000, tzinfo=UTC)
    for type in ("numeric", "double precision"):
        ddl = (
            f"CREATE TABLE jobs (id int PRIMARY KEY, status text, at {type});"
            f" INSERT INTO jobs VALUES (1, 'busy', {began.timestamp()}), (2, 'busy', 'NaN'::float8), (3, 'busy', 1e15)"
        )
        with postgres_queue(ddl, options) as queue:
            assert [(i.condition.value, i.updated_at) for i in items(queue)] == [
                ("stuck", began), ("running", None), ("running", None)
            ]


TEXT = """
table: jobs
key: id
status: {column: status, ready: [new], failed: [bad]}
next_run: due
requeue: {guard: [status], set: {status: new, due: {time: due}}, attempts: {keep: {effect: last_try}}}
"""


@pytest.mark.parametrize(
    ("stored", "times", "form"),
    [
        ("2026-11-10T12:00:00+00:00", "", "????-??-??T??:??:??+00:00"),
        ("2026-11-10T12:00:00.123456+00:00", "", "????-??-??T??:??:??.??????+00:00"),
        ("2026-11-10T12:00:00.123Z", "", "????-??-??T??:??:??.???Z"),
        ("2026-11-10 12:00:00", "", "????-??-?? ??:??:??"),
        ("2026-11-10 14:00:00+0200", "", "????-??-?? ??:??:??+0000"),
        (None, "times: datetime\n", "????-??-?? ??:??:??"),
        (None, "", "????-??-??T??:??:??.*+00:00"),
        (1_790_000_000, "times: epoch\n", "1?????????"),
        (1_790_000_000_123, "times: epoch_ms\n", "1????????????"),
    ],
)
def test_a_time_is_written_in_the_form_it_has(tmp_path: Path, stored: Any, times: str, form: str) -> None:
    """A system that compares its times as text would never find one of another form."""
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, due)"
    with sqlite_queue(tmp_path / "x.db", ddl, mapping(times + TEXT)) as queue:
        queue.insert("jobs", id=1, status="bad", due=stored)
        with operating(queue.open(), tmp_path) as ann:
            assert ann.outcomes(ann.requeue(1)) == {("applied", ""): 1}
        assert queue.one("SELECT due GLOB ? FROM jobs", form) == (1,), queue.one("SELECT due FROM jobs")
        (item,) = items(queue)
        assert abs(item.verdict.next_retry_at - datetime.now(UTC)) < timedelta(minutes=1)  # type: ignore[operator]


# --- what a status means --------------------------------------------------------------------------------------------

KINDS = [
    ("status int", "{column: status, ready: [0], failed: [3]}", [(0,), (3,), (7,), (None,)]),
    ("status boolean", "{column: status, ready: [false], failed: [true]}", [(False,), (True,), (None,)]),
    ("status text", "{expression: 'upper(job.status)', ready: [A], failed: [B]}", [("a",), ("b",), ("c",)]),
]


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize(("column", "status", "rows"), KINDS)
def test_statuses_of_other_types(tmp_path: Path, kind: str, column: str, status: str, rows: list[tuple[Any]]) -> None:
    ddl = f"CREATE TABLE jobs (id INTEGER PRIMARY KEY, {column})"
    options = mapping(f"table: jobs\nkey: id\nstatus: {status}\n")
    made = sqlite_queue(tmp_path / "x.db", ddl, options) if kind == "sqlite" else postgres_queue(ddl, options)
    with made as queue:
        for n, (value,) in enumerate(rows):
            queue.insert("jobs", id=n, status=value)
        assert conditions(queue) == ["waiting", "failed", "unknown", "unknown"][: len(rows)]


STATED = (
    "table: jobs\nkey: id\nstatus: {column: status, ready: [queued], running: [Busy], failed: [_failed], done: [Done, Alt]}\n"
    "attempts: tries\nnext_run: at\n"
)


@pytest.mark.parametrize("collation", ["", 'COLLATE "C"', 'COLLATE "POSIX"'])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_unmapped_statuses_are_found(tmp_path: Path, kind: str, collation: str) -> None:
    """An index finds them by ranges, whatever order the column's collation has."""
    if kind == "sqlite":
        collation = collation.replace('"C"', "NOCASE").replace('"POSIX"', "RTRIM")
    ddl = (
        f"CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT NOT NULL {collation}, tries INTEGER,"
        f" at {'TEXT' if kind == 'sqlite' else 'timestamptz'}); CREATE INDEX by_status ON jobs (status, at);"
    )
    made = sqlite_queue(tmp_path / "x.db", ddl, mapping(STATED)) if kind == "sqlite" else postgres_queue(ddl, mapping(STATED))
    words = ("", "A", "Alt", "Busy", "Caught", "Done", "E", "_failed", "a", "p", "queued", "r", "zzz")
    with made as queue:
        for n, word in enumerate(words):
            queue.insert("jobs", id=n, status=word, tries=0)
        known = {"Alt": "done", "Busy": "running", "Done": "done", "_failed": "failed", "queued": "waiting"}
        assert [(i.native_status, i.condition.value) for i in items(queue)] == [(w, known.get(w, "unknown")) for w in words]
        with closing(queue.open()) as backend:
            counts = backend.counts(EVERYTHING, NOW)
        assert {condition.value: count.value for condition, count in counts.items() if count.value} == {
            "done": 2, "running": 1, "failed": 1, "waiting": 1, "unknown": 8,
        }


IDS = ("B", "C", "_x", "a", "a-c", "ab", "\u00e9")


@pytest.mark.parametrize("sort", ["id:asc", "id:desc", "type:asc", "type:desc"])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_text_sorts_by_its_bytes_whatever_the_database_thinks(tmp_path: Path, kind: str, sort: str) -> None:
    """Otherwise pages of unlike backends could not be merged, and a page after a row would begin elsewhere."""
    nocase = "COLLATE NOCASE" if kind == "sqlite" else ""
    ddl = f"CREATE TABLE jobs (id TEXT {nocase} PRIMARY KEY, kind TEXT {nocase}, status TEXT)"
    named = mapping("table: jobs\nkey: id\nstatus: {column: status, failed: [dead]}\ntype: kind\n")
    made = sqlite_queue(tmp_path / "x.db", ddl, named) if kind == "sqlite" else postgres_queue(ddl, named)
    operation = Sort.parse(sort)
    with made as queue, closing(queue.open()) as backend:
        for id in IDS:
            queue.insert("jobs", id=id, kind=id, status="dead")
        request = PageRequest(EVERYTHING, NOW, operation, limit=3)
        pages = [backend.page(request)]
        while (after := pages[-1].next) is not None:
            pages.append(backend.page(replace(request, after=after)))
        assert [item.key.parts[0] for page in pages for item in page.items] == list(IDS)[:: -1 if operation.descending else 1]


@pytest.mark.parametrize("sort", ["id", "type"])
def test_postgres_sorts_text_by_its_bytes(sort: str) -> None:
    """A server whose own order is that of bytes would hide it from the test above, so its plan is asked too."""
    named = mapping("table: jobs\nkey: id\nstatus: {column: status, failed: [dead]}\ntype: kind\n")
    ddl = "CREATE TABLE jobs (id TEXT PRIMARY KEY, kind TEXT, status TEXT)"
    with postgres_queue(ddl, named) as queue, closing(queue.open()) as backend:
        request = PageRequest(EVERYTHING, NOW, Sort.parse(sort), after=Cursor("b", False, ("b",)))
        (statement,) = backend.reader._paging(request).statements
        parameters = statement.parameters(NOW, given_for(request.after))
        compiled = statement.statement.compile(dialect=backend.database.dialect)
        sql = str(compiled)
        with psycopg.connect(queue.url) as connection:
            lines = connection.execute(f"EXPLAIN VERBOSE {sql}", compiled.construct_params(parameters)).fetchall()
    plan = "\n".join(line for (line,) in lines)
    assert re.search(r'Sort Key: .* COLLATE "C", job\.id$', plan, re.MULTILINE), plan
    assert re.search(r'COLLATE "C"\) >= ', sql), sql


def test_values_of_two_types_in_one_loose_column(tmp_path: Path) -> None:
    options = mapping("table: jobs\nkey: id\nstatus: {column: status, ready: [0], failed: [dead]}\n")
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status); INSERT INTO jobs VALUES (1, 0), (2, 'dead'), (3, 'other'), (4, NULL)"
    with sqlite_queue(tmp_path / "x.db", ddl, options) as queue:
        assert conditions(queue) == ["waiting", "failed", "unknown", "unknown"]


@pytest.mark.parametrize("type", ["INTEGER", "int", "NUMERIC", "REAL", "TEXT", ""])
@pytest.mark.parametrize("written", ['"2"', "2"])
def test_a_status_is_counted_and_shown_alike_however_a_number_is_written(tmp_path: Path, type: str, written: str) -> None:
    ddl = f"CREATE TABLE jobs (id INTEGER PRIMARY KEY, status {type}); CREATE INDEX by_status ON jobs (status)"
    options = mapping(f"table: jobs\nkey: id\nstatus: {{column: status, ready: [0], failed: [{written}]}}\n")
    with sqlite_queue(tmp_path / "x.db", ddl, options) as queue:
        queue.insert("jobs", id=1, status="2" if written == '"2"' else 2)
        assert conditions(queue) == ["failed"]
        with closing(queue.open()) as backend:
            counts = backend.counts(EVERYTHING, NOW)
            assert {condition.value for condition, count in counts.items() if count.value} == {"failed"}


LIMITS = "table: jobs\nkey: id\nstatus: {{column: status, ready: [new], running: [busy], failed: [bad]}}\nattempts: tries\nupdated: at\nstuck_after: 10m\n{limit}"


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("max_attempts: 3", ["failed 2/3", "terminal 3/3"]), ("max_attempts: most", ["terminal 2/2", "failed 3/9"]),
        ("max_attempts: {expression: job.most + 1}", ["failed 2/3", "failed 3/10"]), ("", ["failed 2/None", "failed 3/None"]),
    ],
)
def test_limits_as_a_number_a_column_an_expression_or_unknown(limit: str, expected: list[str]) -> None:
    ddl = (
        "CREATE TABLE jobs (id int PRIMARY KEY, status text, tries int, most int, at timestamptz);"
        " INSERT INTO jobs VALUES (1, 'bad', 2, 2, now()), (2, 'bad', 3, 9, now())"
    )
    with postgres_queue(ddl, mapping(LIMITS.format(limit=limit))) as queue:
        assert [f"{i.condition} {i.attempts}/{i.max_attempts}" for i in items(queue)] == expected


def test_the_config_overrides_a_constant_limit() -> None:
    ddl = "CREATE TABLE jobs (id int PRIMARY KEY, status text, tries int, at timestamptz); INSERT INTO jobs VALUES (1, 'bad', 4, now())"
    with postgres_queue(ddl, mapping(LIMITS.format(limit="max_attempts: 9"))) as queue:
        assert conditions(queue) == ["failed"]
        assert conditions(queue, policy=PolicyOverride(max_attempts=4)) == ["terminal"]


def test_null_may_mean_never() -> None:
    options = mapping(
        "table: jobs\nkey: id\nstatus: {column: status, ready: [new]}\nnext_run: {column: at, when_null: never}\n"
    )
    ddl = "CREATE TABLE jobs (id int PRIMARY KEY, status text, at timestamptz); INSERT INTO jobs VALUES (1, 'new', NULL)"
    with postgres_queue(ddl, options) as queue:
        (item,) = items(queue)
        assert (item.verdict.will_run_again, item.verdict.why) == (
            False, "its system ignores it: its due time is NULL"
        )


# --- errors ---------------------------------------------------------------------------------------------------------

ERRORS = [
    ("sqlite", "TEXT", "{column: e, as: json, message: [code, text]}", '{"code": "E7", "text": "no"}', "E7: no"),
    ("sqlite", "TEXT", "{column: e, as: json, message: [code, text]}", '{"text": "no"}', "no"),
    ("sqlite", "TEXT", "{column: e, as: json, message: [code]}", '{"x": 1}', '{"x": 1}'),
    ("sqlite", "TEXT", "{column: e, as: json, message: [code]}", "{broken", "{broken"),
    ("sqlite", "TEXT", "{column: e, as: json_array, message: [m]}", '[{"m": "one"}, {"m": "two"}]', "two"),
    ("sqlite", "TEXT", "{column: e, as: json_array}", "[]", None),
    ("postgres", "text", "{column: e, as: json, message: [code, text]}", '{"code": "E7", "text": "no"}', "E7: no"),
    ("postgres", "text", "{column: e, as: json, message: [code]}", "{broken", "{broken"),
    ("postgres", "json", "{column: e, as: json, message: [code]}", '{"code": "it''s"}', "its"),
    ("postgres", "jsonb", "{column: e, as: json_array, message: [m]}", '[{"m": "one"}, {"m": "two"}]', "two"),
    ("postgres", "jsonb", "{column: e, as: json_array, message: [m]}", "[]", None),
    ("postgres", "jsonb[]", "{column: e, as: json_array, message: [m]}", '{"{\\"m\\": \\"one\\"}","{\\"m\\": \\"two\\"}"}', "two"),
    ("postgres", "jsonb[]", "{column: e, as: json_array}", "{}", None),
    ("postgres", "int", "e", "7", "7"),
]


@pytest.mark.parametrize(("kind", "type", "error", "stored", "shown"), ERRORS)
def test_sources_of_the_error_text(tmp_path: Path, kind: str, type: str, error: str, stored: str, shown: str | None) -> None:
    options = mapping(f"table: jobs\nkey: id\nstatus: {{column: status, failed: [bad]}}\nerror: {error}\n")
    ddl = f"CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, e {type})"
    made = sqlite_queue(tmp_path / "x.db", ddl, options) if kind == "sqlite" else postgres_queue(ddl, options)
    with made as queue:
        queue.insert("jobs", id=1, status="bad", e=stored)
        assert [item.error for item in items(queue)] == [shown]


# --- requeuing -----------------------------------------------------------------------------------------------------

PAIRS = """
table: pairs
key: [tenant, n]
status: {column: status, ready: [new], running: [busy], failed: [bad]}
attempts: tries
max_attempts: 3
updated: at
stuck_after: 10m
requeue:
  conditions: [failed, terminal, stuck]
  guard: [status, tries]
  set: {status: new, at: {time: now}}
  attempts: {keep: {effect: last_try}, reset: {effect: reset, set: {tries: 0}}}
"""
PAIRS_DDL = "CREATE TABLE pairs (tenant TEXT, n INTEGER, status TEXT NOT NULL, tries INTEGER, at TEXT, PRIMARY KEY (tenant, n))"


def pairs_queue(kind: str, folder: Path) -> AbstractContextManager[Queue]:
    if kind == "sqlite":
        return sqlite_queue(folder / "x.db", PAIRS_DDL, mapping(PAIRS))
    return postgres_queue(PAIRS_DDL.replace("at TEXT", "at timestamptz"), mapping(PAIRS))


def test_a_key_of_two_columns_and_a_stuck_row_in_sqlite(tmp_path: Path) -> None:
    with sqlite_queue(tmp_path / "x.db", PAIRS_DDL, mapping(PAIRS)) as queue:
        for n, (status, tries) in enumerate([("bad", 3), ("busy", 1), ("busy", 3)]):
            queue.insert("pairs", tenant="a/b %", n=n, status=status, tries=tries, at="2026-01-01T00:00:00Z")
        with operating(queue.open(), tmp_path) as ann:
            assert conditions(queue) == ["terminal", "stuck", "stuck"]
            keep = ann.plan(("a/b %", 0), ("a/b %", 1), ("a/b %", 2))
            assert keep.skipped == {"No attempts left, so its system would ignore it.": 1}
            assert keep.warnings == {
                "Attempts are kept: one more try, then terminal.": 1,
                "Ran longer than its limit; the old worker may still be alive.": 1,
            }
            fresh = ann.plan(("a/b %", 0), ("a/b %", 1), ("a/b %", 2), operation=RESET)
            queue.run("UPDATE pairs SET status = 'done' WHERE n = 1", [])
            assert ann.outcomes(ann.apply(fresh)) == {
                ("applied", ""): 2, ("changed", "status is now done, was busy"): 1,
            }
        assert queue.run("SELECT status, tries FROM pairs ORDER BY n", []) == [("new", 0), ("done", 1), ("new", 0)]


@pytest.mark.parametrize(("reclaims", "runs"), [("", None), ("reclaims: true", True), ("reclaims: false", False)])
def test_whether_its_system_takes_a_stuck_row_again(tmp_path: Path, reclaims: str, runs: bool | None) -> None:
    with sqlite_queue(tmp_path / "x.db", PAIRS_DDL, mapping(f"{PAIRS}\n{reclaims}\n")) as queue:
        for tries in (1, 3):
            queue.insert("pairs", tenant="a", n=tries, status="busy", tries=tries, at="2026-01-01T00:00:00Z")
        with closing(queue.open()) as backend:
            found = backend.page(PageRequest(Filter.parse("condition:stuck"), NOW)).items
    assert {item.attempts: item.verdict.will_run_again for item in found} == {1: runs, 3: False}


def test_a_row_locked_by_another_transaction_is_not_touched(tmp_path: Path) -> None:
    ddl = PAIRS_DDL.replace("at TEXT", "at timestamptz")
    with postgres_queue(ddl, mapping(PAIRS)) as queue, operating(queue.open(), tmp_path) as ann:
        for n in range(2):
            queue.insert("pairs", tenant="a", n=n, status="bad", tries=1)
        plan = ann.plan(("a", 0), ("a", 1))
        with psycopg.connect(queue.url) as other:
            other.execute("SELECT 1 FROM pairs WHERE n = 0 FOR UPDATE")
            assert ann.outcomes(ann.apply(plan)) == {
                ("changed", "locked by another transaction"): 1, ("applied", ""): 1
            }


STATEMENTS = """
table: jobs
key: id
status: {column: status, ready: [new], failed: [bad]}
attempts: tries
requeue:
  guard: [status, tries]
  set: {status: new, at: {time: due}}
  statements:
    - "INSERT INTO {log} (job, said) VALUES (:key, '100% :key; --') RETURNING job"
    - "UPDATE {jobs} SET status = 'new', at = :due WHERE id = :key AND tries < 5 RETURNING id"
  attempts: {keep: {effect: last_try}}
"""


def test_several_statements_are_all_or_nothing_for_each_row(tmp_path: Path) -> None:
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, tries INTEGER, at TEXT); CREATE TABLE log (job INTEGER, said TEXT)"
    with sqlite_queue(tmp_path / "x.db", ddl, mapping(STATEMENTS)) as queue, operating(queue.open(), tmp_path) as ann:
        for n in range(4):
            queue.insert("jobs", id=n, status="bad", tries=9 if n == 2 else 1)
        assert ann.outcomes(ann.requeue(0, 1, 2, 3)) == {("applied", ""): 3, ("rejected", "statement 2 changed no row"): 1}
        assert queue.run("SELECT job, said FROM log ORDER BY job", []) == [(n, "100% :key; --") for n in (0, 1, 3)]
        assert queue.run("SELECT id FROM jobs WHERE status = 'bad'", []) == [(2,)]


def test_a_statement_that_also_changes_other_rows_is_rejected(tmp_path: Path) -> None:
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, tries INTEGER, at TEXT); CREATE TABLE log (job INTEGER, said TEXT)"
    careless = mapping(STATEMENTS.replace("WHERE id = :key", "WHERE id >= :key"))
    with sqlite_queue(tmp_path / "x.db", ddl, careless) as queue, operating(queue.open(), tmp_path) as ann:
        queue.insert("jobs", id=1, status="bad", tries=1)
        queue.insert("jobs", id=2, status="done", tries=1)
        assert ann.outcomes(ann.requeue(1)) == {("rejected", "statement 2 changed 2 rows"): 1}
        assert queue.run("SELECT status FROM jobs ORDER BY id", []) == [("bad",), ("done",)]


def failing_pairs(queue: Queue, count: int = 3) -> list[tuple[str, int]]:
    for n in range(count):
        queue.insert("pairs", tenant="a", n=n, status="bad", tries=1)
    return [("a", n) for n in range(count)]


LEFT = {
    "sqlite": "CREATE TRIGGER keep BEFORE UPDATE ON pairs WHEN new.n = 1 BEGIN SELECT raise(ignore); END",
    "postgres": (
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        " CREATE TRIGGER keep BEFORE UPDATE ON pairs FOR EACH ROW WHEN (new.n = 1) EXECUTE FUNCTION keep()"
    ),
}


@pytest.mark.parametrize("kind", LEFT)
def test_a_row_that_the_database_leaves_unchanged_is_not_reported_as_requeued(tmp_path: Path, kind: str) -> None:
    with pairs_queue(kind, tmp_path) as queue, operating(queue.open(), tmp_path) as ann:
        keys = failing_pairs(queue)
        queue.run(LEFT[kind], [])
        assert ann.outcomes(ann.requeue(*keys)) == {
            ("applied", ""): 2, ("changed", "the database left it unchanged"): 1
        }
        assert queue.run("SELECT n FROM pairs WHERE status = 'bad'", []) == [(1,)]


STAMPED = {
    "sqlite": (
        "CREATE TRIGGER stamp AFTER UPDATE OF status ON pairs"
        " BEGIN UPDATE pairs SET at = '2030-01-01T00:00:00Z' WHERE n = new.n; END"
    ),
    "postgres": (
        "CREATE FUNCTION stamp() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN new.at := '2030-01-01'; RETURN new; END $$;"
        " CREATE TRIGGER stamp BEFORE UPDATE ON pairs FOR EACH ROW EXECUTE FUNCTION stamp()"
    ),
}


@pytest.mark.parametrize("kind", STAMPED)
def test_a_trigger_may_write_its_own_time(tmp_path: Path, kind: str) -> None:
    with pairs_queue(kind, tmp_path) as queue, operating(queue.open(), tmp_path) as ann:
        keys = failing_pairs(queue)
        queue.run(STAMPED[kind], [])
        assert ann.outcomes(ann.requeue(*keys)) == {("applied", ""): 3}


def test_an_error_that_aborts_the_transaction_rejects_one_row(tmp_path: Path) -> None:
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, tries INTEGER, at TEXT); CREATE TABLE log (job INTEGER, said TEXT)"
    with sqlite_queue(tmp_path / "x.db", ddl, mapping(STATEMENTS)) as queue, operating(queue.open(), tmp_path) as ann:
        for n in range(4):
            queue.insert("jobs", id=n, status="bad", tries=1)
        queue.run("CREATE TRIGGER no BEFORE UPDATE ON jobs WHEN new.id = 1 BEGIN SELECT raise(rollback, 'no way'); END", [])
        assert ann.outcomes(ann.requeue(0, 1, 2, 3)) == {("applied", ""): 3, ("rejected", "no way"): 1}
        assert queue.run("SELECT job FROM log ORDER BY job", []) == [(0,), (2,), (3,)]
        assert queue.run("SELECT id FROM jobs WHERE status = 'bad'", []) == [(1,)]


def test_an_update_that_aborts_the_transaction_rejects_one_row(tmp_path: Path) -> None:
    with pairs_queue("sqlite", tmp_path) as queue, operating(queue.open(), tmp_path) as ann:
        keys = failing_pairs(queue)
        queue.run("CREATE TRIGGER no BEFORE UPDATE ON pairs WHEN new.n = 1 BEGIN SELECT raise(rollback, 'no way'); END", [])
        assert ann.outcomes(ann.requeue(*keys)) == {("applied", ""): 2, ("rejected", "no way"): 1}
        assert queue.run("SELECT n FROM pairs WHERE status = 'bad'", []) == [(1,)]


def test_keys_of_fixed_width_are_compared_whole(tmp_path: Path) -> None:
    ddl = PAIRS_DDL.replace("at TEXT", "at timestamptz, kind char(4)").replace("tenant TEXT", "tenant char(3)")
    fixed = PAIRS.replace("set: {status: new,", "set: {status: new, kind: none,")
    with postgres_queue(ddl, mapping(fixed)) as queue, operating(queue.open(), tmp_path) as ann:
        for tenant in ("a", "abc", "abd"):
            queue.insert("pairs", tenant=tenant, n=1, status="bad", tries=1, kind="some")
        assert ann.outcomes(ann.requeue(("abc", 1))) == {("applied", ""): 1}
        assert ann.outcomes(ann.requeue(("a  ", 1))) == {("applied", ""): 1}
        assert queue.run("SELECT tenant, status, kind FROM pairs ORDER BY tenant", []) == [
            ("a  ", "new", "none"), ("abc", "new", "none"), ("abd", "bad", "some")
        ]


def test_a_key_that_differs_in_case_is_another(tmp_path: Path) -> None:
    ddl = (
        "CREATE TABLE pairs (tenant TEXT NOT NULL COLLATE NOCASE, n INTEGER NOT NULL, status TEXT, tries INTEGER, at TEXT);"
        " CREATE UNIQUE INDEX whose ON pairs (tenant COLLATE BINARY, n)"
    )
    with sqlite_queue(tmp_path / "x.db", ddl, mapping(PAIRS)) as queue, operating(queue.open(), tmp_path) as ann:
        for tenant in ("ann", "ANN", "bob"):
            queue.insert("pairs", tenant=tenant, n=1, status="bad", tries=1)
        plan = ann.plan(Filter.parse("condition:* attempts>0"))
        queue.run("UPDATE pairs SET tenant = 'Bob' WHERE tenant = 'bob'", [])
        queue.run("DELETE FROM pairs WHERE tenant = 'ANN' COLLATE BINARY", [])
        queue.insert("pairs", tenant="Ann", n=1, status="busy", tries=1)
        assert ann.outcomes(ann.apply(plan)) == {("applied", ""): 1, ("changed", "no longer there"): 2}
        assert queue.run("SELECT tenant, status FROM pairs ORDER BY rowid", []) == [
            ("ann", "new"), ("Bob", "bad"), ("Ann", "busy")
        ]


COUNTED = """
table: jobs
key: id
status: {column: status, ready: [new], failed: [bad]}
attempts: tries
requeue:
  guard: [status]
  set: {status: new, tries: {formula: tries + 1}}
  attempts: {keep: {effect: plus_one}}
"""


@pytest.mark.parametrize(
    ("kind", "skipped", "failed"),
    [
        ("sqlite", {"Holds a number so large that the new value would be too large to write.": 1}, {}),
        ("postgres", {}, {("rejected", "value \"9223372036854775808\" is out of range for type bigint"): 1}),
    ],
)
def test_a_number_too_large_to_write_affects_one_row(
    tmp_path: Path, kind: str, skipped: dict[str, int], failed: dict[tuple[str, str], int]
) -> None:
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, tries bigint)"
    made = sqlite_queue(tmp_path / "x.db", ddl, mapping(COUNTED)) if kind == "sqlite" else postgres_queue(
        ddl, mapping(COUNTED))
    with made as queue, operating(queue.open(), tmp_path) as ann:
        for id, tries in ((1, 2**63 - 1), (2, 2**63 - 2)):
            queue.insert("jobs", id=id, status="bad", tries=tries)
        plan = ann.plan(1, 2)
        assert plan.skipped == skipped
        assert ann.outcomes(ann.apply(plan)) == {("applied", ""): 1, **failed}
        assert queue.run("SELECT tries FROM jobs ORDER BY id", []) == [(2**63 - 1,), (2**63 - 1,)]


UUID_TEXT = "00000000-0000-4000-8000-000000000007"
NOT_ITS_TYPE = {"Its key is not of its column's type, so a write could not find it.": 1}
NOT_TEXT = {"Holds a value that a plan cannot store, so a write could not be guarded.": 1}


@pytest.mark.parametrize(
    ("type", "keys", "skipped"),
    [
        ("uuid", [UUID_TEXT], {}), ("UUID", [UUID_TEXT], {}), ("UUID", [7], {}), ("INT", [7], {}),
        ("INT", [7, "abc"], NOT_ITS_TYPE), ("", [7, 8], {}), ("", ["7", "8"], {}), ("", [7, "abc"], NOT_ITS_TYPE),
        ("", ["abc", b"7"], NOT_TEXT),
        ("BLOB", [7, 8], {}), ("BLOB", ["abc"], {}), ("NUMERIC", [12], {}), ("REAL", [1.5], {}),
        ("", ["abc", 7], NOT_ITS_TYPE), ("", ["abc", -7], NOT_ITS_TYPE), ("", [7, "8"], NOT_ITS_TYPE),
        ("BLOB", [7, "08"], NOT_ITS_TYPE), ("", ["abc", 1.5], NOT_ITS_TYPE), ("", [7, 8.5], NOT_ITS_TYPE),
        ("", ["abc", 1e22], NOT_ITS_TYPE), ("", [7, b"8"], NOT_TEXT), ("INT", [7, b"8"], NOT_TEXT),
        ("INT", [7, 2**63 - 1], {}), ("", ["abc", -(2**63)], NOT_ITS_TYPE),
    ],
)
@pytest.mark.parametrize("also", ["", ", other"])
def test_loose_keys_in_sqlite(tmp_path: Path, type: str, keys: list[Any], skipped: dict[str, int], also: str) -> None:
    """Whatever is listed can be looked at, planned by its key and requeued, or the plan says why not."""
    ddl = (
        f"CREATE TABLE jobs (id {type} NOT NULL, other TEXT NOT NULL DEFAULT 'o', status TEXT, tries INTEGER,"
        f" PRIMARY KEY (id{also}))"
    )
    counted = COUNTED.replace("key: id", f"key: [id{also}]")
    with sqlite_queue(tmp_path / "x.db", ddl, mapping(counted)) as queue, operating(queue.open(), tmp_path) as ann:
        for key in keys:
            queue.insert("jobs", id=key, status="bad", tries=1)
        listed = [item.key for item in items(queue)]
        assert len(listed) == len(keys)
        for key in listed:
            assert ann.backend.item(key, NOW).item.key == key
            assert [item.key for item in items(queue, filter=keyed(key))] == [key]
        plan = ann.plan(*(key.parts for key in listed))
        assert plan.skipped == skipped
        assert ann.outcomes(ann.apply(plan)) == {("applied", ""): len(keys) - sum(skipped.values())}


@pytest.mark.parametrize("keys", [["1", 1], [1, "1"]])
@pytest.mark.parametrize("also", ["", ", other"])
def test_a_text_and_a_number_written_alike_are_two_rows(tmp_path: Path, keys: list[Any], also: str) -> None:
    """The key means the one of its column's type, here the number; the other is listed, and never changed."""
    ddl = (
        "CREATE TABLE jobs (id NOT NULL, other TEXT NOT NULL DEFAULT 'o', status TEXT, tries INTEGER,"
        f" PRIMARY KEY (id{also}))"
    )
    counted = COUNTED.replace("key: id", f"key: [id{also}]")
    with sqlite_queue(tmp_path / "x.db", ddl, mapping(counted)) as queue, operating(queue.open(), tmp_path) as ann:
        for key in keys:
            queue.insert("jobs", id=key, status="bad", tries=5 if key == 1 else 7)
        first, second = listed = [item.key for item in items(queue)]
        assert first == second
        assert ann.backend.item(first, NOW).item.attempts == ann.backend.items([first], NOW)[first].attempts == 5
        assert [item.key for item in items(queue, filter=keyed(first))] == listed
        plan = ann.plan(first.parts)
        assert (plan.changes, plan.skipped) == (1, {})
        assert ann.outcomes(ann.apply(plan)) == {("applied", ""): 1}
        assert queue.run("SELECT id, tries, status FROM jobs ORDER BY id", []) == [(1, 6, "new"), ("1", 7, "bad")]
        assert ann.plan(Filter.parse("condition:failed")).skipped == NOT_ITS_TYPE
        queue.insert("jobs", id=2, status="new", tries=0)
        queue.run("DELETE FROM jobs WHERE typeof(id) = 'integer' AND id = 1", [])
        assert ann.plan(first.parts).skipped == NOT_ITS_TYPE
        assert ann.backend.item(first, NOW).item.attempts == 7


def test_a_mapping_without_requeue_only_reads(tmp_path: Path) -> None:
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT); INSERT INTO jobs VALUES (1, 'bad')"
    options = mapping("table: jobs\nkey: id\nstatus: {column: status, failed: [bad]}\n")
    with sqlite_queue(tmp_path / "x.db", ddl, options) as queue, operating(queue.open(), tmp_path) as ann:
        assert ann.plan(1).skipped == {"queue cannot requeue items.": 1}


def test_a_view_is_refused_because_nothing_keeps_its_key_unique(tmp_path: Path) -> None:
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT); CREATE VIEW seen AS SELECT * FROM jobs"
    options = mapping("table: seen\nkey: id\nstatus: {column: status, failed: [bad]}\n")
    with sqlite_queue(tmp_path / "x.db", ddl, options) as queue, pytest.raises(WrongSchema, match="id is not unique"):
        items(queue)


# --- fragments and formulas ---------------------------------------------------------------------------------------------


@given(st.text(alphabet="ab'\"();-/*$ :{}%[]", max_size=40))
def test_a_fragment_cannot_end_the_surrounding_statement(text: str) -> None:
    try:
        made = fragment(text)
    except ValueError:
        return
    outside = "".join(piece for kind, piece in made.pieces if kind == "sql" and piece[:1] not in "'\"")
    assert not any(mark in outside for mark in (";", "'", '"'))
    assert outside.count("(") == outside.count(")")
    assert outside.count("[") == outside.count("]")


@pytest.mark.parametrize(
    ("text", "value"),
    [("tries + 1", 4), ("greatest(most, tries + 1)", 5), ("least(most, tries) - 2", 1), ("7", 7), ("nothing + 1", 1)],
)
def test_formulas(text: str, value: int) -> None:
    assert formula(text).value({"tries": 3, "most": 5, "nothing": None}) == value


def test_concurrent_first_reads_attach_once(tmp_path: Path) -> None:
    """The console asks from several threads at once as soon as it is open."""
    options = mapping(
        "table: jobs\nkey: id\nstatus: {column: status, ready: [ready], failed: [dead]}\n"
        "requeue: {guard: [status], set: {status: ready}, attempts: {keep: {effect: last_try}}}\n"
    )
    ddl = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status); INSERT INTO jobs VALUES (1, 'dead')"
    with sqlite_queue(tmp_path / "x.db", ddl, options) as queue, closing(queue.open()) as backend, ThreadPoolExecutor(4) as threads:
        looked = backend._layout

        def slowly() -> Layout:
            layout = looked()
            sleep(next(delays))
            return layout

        def planned() -> list[str]:
            batches = backend.drafts(EVERYTHING, Sort(), Operation(), NOW, Never())
            return [draft.key for batch in batches for draft in batch]

        delays = iter((0.05, 0.1, 0.15, 0.2))
        backend._layout = slowly  # type: ignore[method-assign]
        found = [threads.submit(planned) for _ in range(4)]
        assert [each.result() for each in found] == [[f"{backend.name}/1"]] * 4


@pytest.mark.parametrize(("stored", "shown"), [
    ('{"exception_class":"Net::OpenTimeout","message":"execution \\"expired\\"\\nat 7","backtrace":["a.rb:1"]}',
     'Net::OpenTimeout: execution "expired"\nat 7'),
    ('{"exception_class": "E", "message": ""}', "E"),
    ('{"message": "only"}', "only"),
    ("{broken", "{broken"),
    (None, None),
])
def test_json_in_text_is_read_by_patterns_where_the_server_cannot_check_it(stored: str | None, shown: str | None) -> None:
    """PostgreSQL before 16 has no pg_input_is_valid."""
    source = ErrorSource.model_validate({"column": "e", "as": "json", "message": ["exception_class", "message"]})
    with postgres_queue("CREATE TABLE t (e text)", {"preset": "que"}) as queue:
        queue.run("INSERT INTO t VALUES (?)", [stored])
        select = sa.select(fields_by_pattern(sa.column("e"), source)).select_from(sa.table("t"))
        sql = str(select.compile(dialect=postgresql.dialect()))
        assert queue.run(sql, []) == [(shown,)]
