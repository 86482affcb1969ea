"""A filter as SQL finds in a real SQLite database what `Filter.matches` finds among the items."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from typing import Any, cast

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects.sqlite.pysqlite import dialect as sqlite_dialect

from console.core.backend import PageRequest
from console.core.item import Condition, ItemKey
from console.core.policy import RetryPolicy
from console.core.query import COMPARISONS, Field, Filter, Glob, Op, Term
from console.sql.database import Binds, BoundStatement
from console.sql.keys import shows_key
from console.sql.layout import Roles
from console.sql.times import IsoText
from console.sql.values import text
from console.sql.where import Where
from console.testing import ALL, NOON, World
from tests.plugins.sqlite_queue import queue_files as files


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(lambda: files.async_harness(tmp_path_factory.mktemp("where") / "queue.db"))
    yield made
    made.backend.close()


letters = st.text(st.sampled_from("aeiLRT_%*?[]x^-é É'\"\\5"), max_size=4)
some = letters.filter(bool)
globs = st.tuples(letters, st.lists(some, max_size=1), letters).map(lambda p: Glob((p[0], *p[1], p[2])))
ages = st.sampled_from([-4000, -1, 0, 1e-6, 1, 300, 360, 3600, 86400]).map(lambda s: timedelta(seconds=s))
TEXTUAL = st.sampled_from([Field.TYPE, Field.STATUS, Field.ERROR])


def several(values: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(values, min_size=1, max_size=2).map(tuple)


terms = st.one_of(
    st.builds(Term, TEXTUAL, st.just(Op.EQUALS), several(st.one_of(letters, globs)), st.booleans()),
    st.builds(Term, st.one_of(TEXTUAL, st.just(Field.TEXT)), st.just(Op.CONTAINS), several(some), st.booleans()),
    st.builds(Term, st.just(Field.ATTEMPTS), st.sampled_from(list(COMPARISONS)), st.tuples(st.integers(-5, 6)), st.booleans()),
    st.builds(Term, st.just(Field.ATTEMPTS), st.just(Op.EQUALS), several(st.integers(-5, 6)), st.booleans()),
    st.builds(Term, st.sampled_from([Field.CREATED, Field.UPDATED, Field.NEXT]), st.sampled_from(list(COMPARISONS)),
              st.tuples(st.one_of(ages, ages.map(lambda age: NOON - age))), st.booleans()),
    st.builds(Term, st.just(Field.RECOVERABLE), st.just(Op.EQUALS), several(st.booleans()), st.booleans()),
    st.builds(Term, st.just(Field.CONDITION), st.just(Op.EQUALS), several(st.sampled_from(Condition)), st.booleans()),
)
filters = st.lists(terms, min_size=1, max_size=3).map(lambda some: Filter(tuple(some)))


@given(asked=filters)
def test_a_filter_in_sql_is_the_filter(world: World, asked: Filter) -> None:
    found = {item.key for item in world.backend.page(PageRequest(asked, NOON, limit=1000)).items}
    assert found == {item.key for item in world.fitting(asked)}, str(asked)


def compiled(statement: BoundStatement) -> tuple[str, dict[str, Any]]:
    made = cast("Any", statement.statement).compile(dialect=sqlite_dialect(paramstyle="named"))
    return str(made), {**made.params, **statement.parameters(NOON)}


def test_an_error_of_which_nothing_is_shown_is_neither_recoverable_nor_not() -> None:
    """Text ends at a NUL to SQLite's functions, but not to a reader. An empty BLOB is no empty text to its comparisons."""
    nothing: Any = sa.null()
    table = sa.table("t", sa.column("id"), sa.column("error"))
    one = (table.c.id,)
    roles = Roles(one, one, one, nothing, nothing, nothing, table.c.error, None, None, None)
    dialect = sqlite_dialect()
    where, binds = Where("q", dialect, IsoText(), RetryPolicy(unrecoverable=("never",))), Binds()
    (present,) = where.predicates(Filter.parse("recoverable:yes,no"), roles, binds)
    statement = BoundStatement(sa.select(table.c.error).where(present), binds)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, error)")
        errors = [None, "", b"", "\0abc", b"\0abc", "boom", b"boom", "never", 0]
        connection.executemany("INSERT INTO t (error) VALUES (?)", [(error,) for error in errors])
        found = {error for (error,) in connection.execute(*compiled(statement))}
    assert found == set(errors) - {None, "", b""}


@pytest.mark.parametrize(
    "text",
    [
        "key:queue/{0}", "key:{0}", "key:{0}*", "key:*{0}", "key~{0}", "key:queue/*", "-key:{0}",
        "key:other/{0}", "key:{0}/x", "key:none,{0}",
    ],
)
def test_keys_are_found_as_they_are_written(world: World, text: str) -> None:
    plain = next(item.key.id for item in world.items if item.key.id.isdecimal())
    asked = Filter.parse(f"{text.format(plain)} condition:*")
    found = {item.key for item in world.backend.page(PageRequest(asked, NOON, limit=1000)).items}
    assert found == {item.key for item in world.fitting(asked)}


def test_every_key_is_found_by_what_the_list_shows(world: World) -> None:
    for item in world.items[::7]:
        for written in (str(item.key), item.key.id):
            asked = Filter((Term(Field.KEY, Op.EQUALS, (written,)), *ALL.terms))
            assert [found.key for found in world.backend.page(PageRequest(asked, NOON)).items] == [item.key]


@pytest.mark.parametrize("parts", [(), ("a", "b"), ("",), ("\ud800",), ("x", "y", "z")])
def test_a_key_of_another_shape_finds_nothing(world: World, parts: tuple[str, ...]) -> None:
    assert world.backend.items([ItemKey("queue", parts)], NOON) == {}


HELD = ["1", 1, b"1", "01", 7, 7.5, "7.5", 8.0, "8", "8.0", 1e22, "1e+22", "1.0e+22", -3, "-3", 2**63 - 1, str(2**63), "x", b"x", "", b"",
        float("inf"), "inf", "nan", "é", b"\xff", "X", 9.5e-7]


@pytest.mark.parametrize("rest", ["", " WITHOUT ROWID"])
@pytest.mark.parametrize("also", ["", ", other"])
@pytest.mark.parametrize("type", ["", "BLOB", "TEXT", "INT", "NUMERIC", "REAL"])
def test_a_key_shows_the_rows_that_are_listed_under_it_by_the_index(type: str, also: str, rest: str) -> None:
    nothing: Any = sa.null()
    table = sa.table("t", sa.column("id"), sa.column("other"))
    key = (table.c.id, table.c.other) if also else (table.c.id,)
    roles = Roles(key, key, key, nothing, nothing, nothing, nothing, None, None, None)
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE t (id {type} NOT NULL, other TEXT NOT NULL, PRIMARY KEY (id{also})){rest}")
        connection.executemany("INSERT OR IGNORE INTO t VALUES (?, 'o')", [(value,) for value in HELD])
        listed = [id for (id,) in connection.execute("SELECT id FROM t")]
        for asked in {text(id) for id in [*listed, *HELD]}:
            binds = Binds()
            where = shows_key(roles, [(asked, "o") if also else (asked,)], binds)
            statement = BoundStatement(sa.select(table.c.id).where(where), binds)
            sql, given = compiled(statement)
            found = [id for (id,) in connection.execute(sql, given)]
            assert found == [id for id in found if text(id) == asked]
            assert len(found) == sum(text(id) == asked for id in listed), asked
            plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", given)]
            assert not asked or all(step.startswith("SEARCH t ") or step == "MULTI-INDEX OR" or step.startswith("INDEX ") for step in plan), plan
