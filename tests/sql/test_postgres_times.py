"""Times of PostgreSQL that Python's calendar does not have: what a filter finds is what the items show."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
import sqlalchemy as sa

from console.core.policy import RetryPolicy
from console.core.query import Filter
from console.sql.database import Binds, BoundStatement
from console.sql.layout import Roles
from console.sql.postgres import PostgresDatabase
from console.sql.times import Aware, Naive, TimeStyle
from console.sql.where import Where
from console.testing import NOON
from tests.plugins.postgres_analyses.server import database

STORED = [
    None, "infinity", "-infinity", "4000-01-01 BC", "0001-12-31 23:59 BC", "0001-01-01", "0001-01-01 00:53:27",
    "0001-01-01 12:00", "2026-11-10 11:00+00", "9999-12-31 12:00", "9999-12-31 23:59:59.999999", "10000-01-01",
    "12026-01-01", "0001-01-01 00:00+00", "0001-01-01 06:00+00", "9999-12-31 23:30+00", "10000-01-01 03:00+00",
]
EDGES = [NOON, NOON - timedelta(days=700_000), NOON + timedelta(days=2_900_000)]
ZONES = ["Europe/Berlin", "America/New_York", "UTC"]
TABLE = sa.table("t", sa.column("id"), sa.column("at"))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_times_compare_as_what_is_read_of_them(kind: str, zone: str) -> None:
    style: TimeStyle = Aware() if kind == "timestamptz" else Naive(ZoneInfo(zone))
    with database(f"CREATE TABLE t (id int, at {kind})", zone) as url, closing(PostgresDatabase(url)) as db:
        with psycopg.connect(url, autocommit=True) as own, own.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (%s, %s)", list(enumerate(STORED)))
        read = {id: style.decode(at) for id, at in db.fetch("SELECT id, at FROM t", ())}
        compared: Any = style.compared(TABLE.c.at)
        for edge in EDGES:
            for later in (True, False):
                binds = Binds()
                bound = binds.value(style.bound(edge))
                statement = sa.select(TABLE.c.id).where(compared >= bound if later else compared <= bound)
                found = {id for (id,) in db.read(BoundStatement(statement, binds), NOON)}
                assert found == {id for id, at in read.items() if at is not None and (at >= edge if later else at <= edge)}
    assert None in list(read.values())[1:]


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_an_index_on_a_time_serves_a_filter(kind: str) -> None:
    style: TimeStyle = Aware() if kind == "timestamptz" else Naive(UTC)
    ddl = f"CREATE TABLE t (id int, at {kind}); CREATE INDEX ON t (at); INSERT INTO t SELECT n, now() - n * interval '1 day' FROM generate_series(1, 5000) n; ANALYZE t"
    nothing: Any = sa.null()
    roles = Roles((TABLE.c.id,), (TABLE.c.id,), (TABLE.c.id,), nothing, nothing, nothing, nothing, None, TABLE.c.at, None)
    with database(ddl) as url, closing(PostgresDatabase(url)) as db:
        binds = Binds()
        where = Where("q", db.dialect, style, RetryPolicy())
        terms = list(where.predicates(Filter.parse("updated<3d"), roles, binds))
        statement = sa.select(TABLE.c.id).where(*terms)
        sql = statement.compile(dialect=db.dialect)
        plan = db.fetch(f"EXPLAIN {sql}", BoundStatement(statement, binds).parameters(datetime.now(UTC)))
    assert any("Index Cond" in line for (line,) in plan)
