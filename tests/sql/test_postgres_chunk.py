"""A chunk's columns are what looking at each of its changes would find."""

from __future__ import annotations

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.core.backend import Change
from console.core.changes import Changes, SoleKeys
from console.core.item import ItemKey
from console.sql.guarded import Target
from console.sql.guarded_postgres import _PLACE, PostgresGuard, _Chunk, _keys, _places, _Statements
from console.sql.postgres import PostgresDatabase
from console.sql.values import castable
from tests.plugins.postgres_analyses.server import database

IDS = st.one_of(
    st.integers(-(10**19), 10**19).map(str),
    st.sampled_from(["0", "-0", "00", "007", "1\n2", "1,2", "", "1/2", "%31", "a", "٣", " 1", "1 "]),
)
REST = st.sampled_from(["vectorization", "", "dp update", "\n", "%", "x/y", "1"])
UNITS = st.sampled_from([
    "7@(0,1)", "8@(12345,67)", "", "9@", "(1,2)@(3,4)", "a\n@(5,6)", "5@(7,8)x", "6@(٣,1)", "\n", "(1,2)",
    "(1,2)\n(3,4)",
])


@given(st.lists(st.tuples(IDS, REST), min_size=1, max_size=6), st.integers(1, 2))
def test_keys(parts: list[tuple[str, str]], width: int) -> None:
    keys = [ItemKey("analyses", one[:width]) for one in parts]
    target = Target("t", "id", ("a",), integer_key=True, key_parts=width)
    count = len(keys)
    changes = Changes([""] * count, SoleKeys("analyses", list(map(str, keys))), [()] * count, [()] * count)
    found = [None if key is None else str(key) for key in _keys(changes, target)]
    assert found == [None if (key := target.key_of(one)) is None else str(key) for one in keys]


@given(st.lists(UNITS, min_size=1, max_size=6))
def test_places(units: list[str]) -> None:
    assert list(_places(units)) == [found[0] if (found := _PLACE(unit)) else None for unit in units]


FILLED = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t SELECT n, 'x' FROM generate_series(1, 20000) n"


@pytest.mark.parametrize("by_place", [True, False])
def test_a_large_chunk_of_a_small_table_reads_its_own_rows_only(by_place: bool) -> None:
    """Told how many there are, the planner would read the whole table for every chunk."""
    target = Target("t", "id", ("a",), integer_key=True)
    changes = [Change(f"{n}@({n // 200},{n % 200})", (ItemKey("q", (str(n),)),), (f"x{n}",), (f"y{n}",)) for n in range(4000)]
    with database(FILLED) as url, psycopg.connect(url, autocommit=True) as own:
        own.execute("VACUUM ANALYZE t")
        chunk, attached = _Chunk(Changes.of(changes), target), PostgresDatabase(url)
        sql = _Statements(attached, target).update(by_place, chunk.shared)
        plan = own.execute(f"EXPLAIN {sql}".encode(), chunk.given(range(4000))).fetchall()
        attached.close()
    assert not [line for (line,) in plan if "Seq Scan" in line]


PARTITIONED = """
    CREATE TABLE t (id int PRIMARY KEY, a text) PARTITION BY RANGE (id);
    CREATE TABLE t_low PARTITION OF t FOR VALUES FROM (0) TO (100);
    CREATE TABLE t_high PARTITION OF t FOR VALUES FROM (100) TO (10000);
    INSERT INTO t SELECT n, 'x' FROM generate_series(1, 150) n"""


def test_rows_of_another_partition_in_the_same_place_are_left_alone() -> None:
    """Places repeat in every partition; and a stray row would make up for one that is gone."""
    target = Target("t", "id", ("a",), integer_key=True)
    with database(PARTITIONED) as url, psycopg.connect(url, autocommit=True) as own:
        places = dict(own.execute("SELECT id, ctid::text FROM t").fetchall())
        attached = PostgresDatabase(url)
        changes = [
            Change(f"{id}@{place}", (ItemKey("q", (str(id),)),), ("x",), ("y",))
            for id, place in ((1, places[1]), (101, places[101]), (2, places[2]), (5000, places[3]))
        ]
        outcomes = PostgresGuard(attached, target).swap(changes)
        attached.close()
        changed = {id for (id,) in own.execute("SELECT id FROM t WHERE a = 'y'")}
    assert places[1] == places[100]
    assert [outcome.detail for outcome in outcomes] == ["", "", "", "no longer there"]
    assert changed == {1, 2, 101}


@pytest.mark.parametrize(("kind", "ids"), [("char(10)", ("abc", "a")), ("bit(3)", ("101", "100")), ("varchar(3)", ("abc", "a"))])
def test_a_key_of_a_fixed_length_leads_to_its_own_row(kind: str, ids: tuple[str, str]) -> None:
    """`character` as a cast means one letter, and the row of that key is another one."""
    one, other = ids
    ddl = f"CREATE TABLE t (id {kind} PRIMARY KEY, a {kind}); INSERT INTO t VALUES ('{one}', '{one}'), ('{other}', '{one}')"
    with database(ddl) as url, psycopg.connect(url, autocommit=True) as own:
        attached = PostgresDatabase(url)
        guard = PostgresGuard(attached, Target("t", "id", ("a",)))
        ((key,),) = own.execute("SELECT id FROM t WHERE id = %s", [one]).fetchall()
        planned = Change("", (ItemKey("q", (key,)),), (key,), (other,))
        assert guard.images([ItemKey("q", (key,))]) == {ItemKey("q", (key,)): (key,)}
        assert [guard.swap([planned])[0].kind.value for _ in range(2)] == ["changed", "conflicted"]
        attached.close()
        rows = own.execute("SELECT id::text, a::text FROM t").fetchall()
    assert {id.strip(): a.strip() for id, a in rows} == {one: other, other: one}


@pytest.mark.parametrize(
    ("told", "cast"), [("character", "bpchar"), ("character[]", "bpchar[]"), ("bit", "varbit"), ("character varying", "character varying")]
)
def test_a_type_to_cast_to_holds_any_length(told: str, cast: str) -> None:
    assert castable(told) == cast


def test_an_id_of_nineteen_digits_is_found() -> None:
    """As snowflakes have them."""
    ids = [2**63 - 1, -(2**63), 1234567890123456789, 7]
    target = Target("t", "id", ("a",), integer_key=True)
    with database("CREATE TABLE t (id bigint PRIMARY KEY, a text)") as url, psycopg.connect(url, autocommit=True) as own:
        own.execute("INSERT INTO t SELECT unnest(%s::bigint[]), 'x'", [ids])
        attached = PostgresDatabase(url)
        changes = [Change("", (ItemKey("q", (str(id),)),), ("x",), ("y",)) for id in (*ids, 2**63)]
        outcomes = [outcome.detail for outcome in PostgresGuard(attached, target).swap(changes)]
        attached.close()
    assert outcomes == ["", "", "", "", "no longer there"]
