"""The guarded write on PostgreSQL finds exactly its rows."""

from __future__ import annotations

import psycopg
import pytest

from console.core.backend import Change
from console.core.item import ItemKey
from console.sql.guarded import Target
from console.sql.guarded_postgres import PostgresGuard, _Chunk, _Statements
from console.sql.postgres import PostgresDatabase
from console.sql.values import castable
from tests.plugins.postgres_analyses.server import database

FILLED = "CREATE TABLE t (id int PRIMARY KEY, a text); INSERT INTO t SELECT n, 'x' FROM generate_series(1, 20000) n"


@pytest.mark.parametrize("by_ctid", [True, False])
def test_a_large_chunk_of_a_small_table_reads_its_own_rows_only(by_ctid: bool) -> None:
    """If it knew how many there are, the planner would read the whole table for every chunk."""
    target = Target("t", "id", ("a",), integer_key=True)
    changes = [Change(f"{n}@({n // 200},{n % 200})", (ItemKey("q", (str(n),)),), (f"x{n}",), (f"y{n}",)) for n in range(4000)]
    with database(FILLED) as url, psycopg.connect(url, autocommit=True) as own:
        own.execute("VACUUM ANALYZE t")
        chunk, attached = _Chunk(changes, target), PostgresDatabase(url)
        sql = _Statements(attached, target).update(by_ctid, chunk.shared)
        plan = own.execute(f"EXPLAIN {sql}".encode(), chunk.parameters(range(4000))).fetchall()
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
        outcomes = PostgresGuard(attached, target).compare_and_set(changes)
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
        assert [guard.compare_and_set([planned])[0].kind.value for _ in range(2)] == ["applied", "changed"]
        attached.close()
        rows = own.execute("SELECT id::text, a::text FROM t").fetchall()
    assert {id.strip(): a.strip() for id, a in rows} == {one: other, other: one}


@pytest.mark.parametrize(
    ("declared", "cast"), [("character", "bpchar"), ("character[]", "bpchar[]"), ("bit", "varbit"), ("character varying", "character varying")]
)
def test_a_type_to_cast_to_holds_any_length(declared: str, cast: str) -> None:
    assert castable(declared) == cast


def test_an_id_of_nineteen_digits_is_found() -> None:
    """As snowflakes have them."""
    ids = [2**63 - 1, -(2**63), 1234567890123456789, 7]
    target = Target("t", "id", ("a",), integer_key=True)
    with database("CREATE TABLE t (id bigint PRIMARY KEY, a text)") as url, psycopg.connect(url, autocommit=True) as own:
        own.execute("INSERT INTO t SELECT unnest(%s::bigint[]), 'x'", [ids])
        attached = PostgresDatabase(url)
        changes = [Change("", (ItemKey("q", (str(id),)),), ("x",), ("y",)) for id in (*ids, 2**63)]
        outcomes = [outcome.detail for outcome in PostgresGuard(attached, target).compare_and_set(changes)]
        attached.close()
    assert outcomes == ["", "", "", "", "no longer there"]
