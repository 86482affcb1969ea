"""Promise: a connection for reading cannot write to PostgreSQL, whatever the tables, views and policies call."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from console.core.faults import BackendFault
from console.core.ports import Never
from console.process import SystemClock
from console.sql.database import Binds, BoundStatement
from console.sql.postgres import PostgresDatabase, ServerSettings, setting_findings
from console.trail.store import open_trail
from tests.attacks.proxy import dropping_options
from tests.plugins.postgres_analyses.server import database, server

SCHEMA = """
CREATE TABLE loot (at timestamptz);
CREATE FUNCTION steal(loud boolean) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('default_transaction_read_only', 'off', false);
    PERFORM set_config('transaction_read_only', 'off', false);
    INSERT INTO loot VALUES (now());
    RETURN 1;
EXCEPTION WHEN OTHERS THEN
    IF loud THEN RAISE; END IF;
    PERFORM set_config('default_transaction_read_only', 'off', false);
    RETURN 1;
END $$;
CREATE FUNCTION write_only() RETURNS int LANGUAGE plpgsql AS $$ BEGIN INSERT INTO loot VALUES (now()); RETURN 1; END $$;
CREATE TABLE jobs (id int PRIMARY KEY);
INSERT INTO jobs SELECT generate_series(1, 5);
CREATE VIEW trap AS SELECT id, steal(false) AS s FROM jobs;
CREATE TABLE guarded (id int PRIMARY KEY);
INSERT INTO guarded SELECT generate_series(1, 5);
CREATE POLICY trap ON guarded USING (steal(false) = 1);
ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
ALTER TABLE guarded FORCE ROW LEVEL SECURITY;
GRANT USAGE ON SCHEMA public TO PUBLIC;
GRANT ALL ON ALL TABLES IN SCHEMA public TO PUBLIC;
"""
SOON = timedelta(seconds=20)
NOON = datetime(2026, 11, 1, 12, tzinfo=UTC)


@pytest.fixture
def url() -> Iterator[str]:
    with database(SCHEMA) as found:
        yield found


@pytest.fixture
def db(url: str) -> Iterator[PostgresDatabase]:
    found = PostgresDatabase(url, deadline=SOON)
    yield found
    found.close()


def stolen(url: str) -> int:
    with psycopg.connect(url) as other:
        row = other.execute("SELECT count(*) FROM loot").fetchone()
    assert row is not None
    return int(row[0])


def statement_of(sql: str) -> BoundStatement:
    return BoundStatement(sa.text(sql), Binds())


def test_a_function_that_turns_the_session_default_off_cannot_write(db: PostgresDatabase, url: str) -> None:
    for _ in range(2):  # the second read meets a session whose default is off
        for sql in ("SELECT id, s FROM trap", "SELECT steal(false) FROM jobs"):
            db.fetch(sql, ())
            list(db.stream(statement_of(sql), NOON, Never(), 2))
    with pytest.raises(BackendFault):
        db.fetch("SELECT steal(true)", ())
    with pytest.raises(BackendFault, match="may only read"):
        db.fetch("SELECT write_only()", ())
    assert stolen(url) == 0


def test_a_policy_that_turns_the_session_default_off_cannot_write(url: str) -> None:
    role = "reader_" + str(sa.make_url(url).database)
    server().execute(f"CREATE ROLE {role} LOGIN")
    try:
        db = PostgresDatabase(sa.make_url(url).set(username=role).render_as_string(hide_password=False), deadline=SOON)
        for _ in range(3):
            assert db.fetch("SELECT count(*) FROM guarded", ()) == [(5,)]
        db.close()
    finally:
        server().execute(f"DROP ROLE {role}")
    assert stolen(url) == 0


def test_a_server_behind_a_pooler_that_drops_the_options_is_read_only_too(url: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, dropping_options(url, Path(folder)) as through:
        db = PostgresDatabase(through, deadline=SOON)
        assert db.fetch("SELECT current_setting('default_transaction_read_only')", ()) == [("off",)], "they are dropped"
        for _ in range(2):
            with pytest.raises(BackendFault, match="may only read"):
                db.fetch("SELECT write_only() FROM jobs", ())
            with pytest.raises(BackendFault, match="may only read"):
                list(db.stream(statement_of("SELECT write_only() FROM jobs"), NOON, Never()))
        assert db.fetch("SELECT count(*) FROM jobs", ()) == [(5,)]
        db.close()
    assert stolen(url) == 0


def test_a_server_that_does_not_keep_the_transaction_read_only_is_refused_before_the_statement_runs(url: str) -> None:
    lying = b"BEGIN READ ONLY", b"BEGIN          "
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, dropping_options(url, Path(folder), lying) as through:
        db = PostgresDatabase(through, deadline=SOON)
        for _ in range(2):
            with pytest.raises(BackendFault, match="would let this read-only connection write"):
                db.fetch("SELECT write_only() FROM jobs", ())
            with pytest.raises(BackendFault, match="would let this read-only connection write"):
                list(db.stream(statement_of("SELECT write_only() FROM jobs"), NOON, Never()))
        with pytest.raises(BackendFault, match="would let this read-only connection write"):
            db.has_index("jobs", ["id"])
        db.close()
    assert stolen(url) == 0


def test_a_statement_that_divides_by_zero_is_not_taken_for_a_writable_server(db: PostgresDatabase) -> None:
    with pytest.raises(BackendFault, match="division by zero"):
        db.fetch("SELECT 1 / (id - 1) FROM jobs", ())
    assert db.fetch("SELECT count(*) FROM jobs", ()) == [(5,)], "the connection is of use afterwards"


@pytest.mark.parametrize(("version", "may", "warned"), [(150004, True, True), (150004, False, False), (160000, True, False)])
def test_check_says_that_an_old_server_lets_a_reader_create_large_objects(version: int, may: bool, warned: bool) -> None:
    found = list(setting_findings(ServerSettings(version, may, True), "auditor"))
    assert ["large objects" in finding.message for finding in found] == [True] * warned


def test_a_new_server_refuses_large_objects_while_reading(db: PostgresDatabase) -> None:
    settings = db.server_settings()
    if settings.version >= 160000:
        with pytest.raises(BackendFault, match="may only read"):
            db.fetch("SELECT lo_create(0)", ())
    assert bool(list(setting_findings(settings, "x"))) == (settings.version < 160000 or not settings.durable_commits)


def test_a_trail_behind_a_pooler_that_drops_the_options_is_in_its_own_schema(url: str) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, dropping_options(url, Path(folder)) as through:
        with closing(open_trail(through, read_only=False, anchor=None, clock=SystemClock())) as trail:
            trail.refuse({"why": "test"}, NOON)
            assert trail.verified().records == 1
        with closing(open_trail(through, read_only=True, anchor=None, clock=SystemClock())) as trail:
            assert [record.kind for record in trail.records()] == ["refusal"]
    with psycopg.connect(url) as other:
        assert other.execute("SELECT schemaname FROM pg_tables WHERE tablename = 'record'").fetchall() == [("retriage_trail",)]
