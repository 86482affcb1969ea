"""Promise: a connection for reading cannot change a table of MySQL or MariaDB, whatever the functions and views call."""

from __future__ import annotations

import tempfile
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from console.core.faults import BackendFault
from console.sql.mysql import MysqlDatabase
from tests import mariadb
from tests.attacks.proxy import changing
from tests.patience import PATIENCE

DDL = """
CREATE TABLE jobs (id int PRIMARY KEY, body text);
INSERT INTO jobs VALUES (1, 'one');
CREATE TABLE loot (at text) ENGINE=MyISAM
"""
QUIETLY = "DECLARE CONTINUE HANDLER FOR SQLEXCEPTION BEGIN END;"
TURN_IT_OFF = "SET SESSION tx_read_only = 0; SET SESSION TRANSACTION READ WRITE; SET TRANSACTION READ WRITE;"
STEAL = "UPDATE jobs SET body = 'x'; INSERT INTO loot VALUES (now());"


@pytest.mark.parametrize("body", [f"{QUIETLY} {TURN_IT_OFF} {STEAL}", f"{TURN_IT_OFF} {STEAL}", f"{QUIETLY} {STEAL}"])
def test_a_function_that_turns_the_session_writable_cannot_write(body: str) -> None:
    with mariadb.database(DDL) as url:
        with mariadb.connection(url) as owner, owner.cursor() as cursor:
            cursor.execute(f"CREATE FUNCTION steal() RETURNS int BEGIN {body} RETURN 1; END")
            cursor.execute("CREATE VIEW trap AS SELECT id, steal() AS s FROM jobs")
        with closing(MysqlDatabase(url, deadline=timedelta(seconds=PATIENCE))) as db:
            for sql in ("SELECT steal()", "SELECT * FROM trap") * 2:  # the second read meets a session that was changed
                with suppress(BackendFault):
                    db.fetch(sql, ())
            for sql in ("SELECT 1; DELETE FROM jobs", "SELECT id FROM jobs FOR UPDATE"):
                with pytest.raises(BackendFault):
                    db.fetch(sql, ())
            assert list(db.fetch("SELECT body FROM jobs", ())) == [("one",)]
            assert list(db.fetch("SELECT count(*) FROM loot", ())) == [(0,)]


def test_a_session_that_a_proxy_leaves_writable_is_refused_before_anything_is_read() -> None:
    kept = b"READ COMMITTED, READ ONLY", b"READ COMMITTED           "
    with mariadb.database(DDL) as url, tempfile.TemporaryDirectory(dir="/tmp") as folder:
        given = sa.make_url(url)
        if "unix_socket" not in given.query:
            pytest.skip("the server that was named has no socket here")
        between = Path(folder) / "socket"
        through = given.set(query={"unix_socket": str(between)}).render_as_string(hide_password=False)
        for replaced, refused in ((kept, True), ((b"", b""), False)):
            between.unlink(missing_ok=True)
            with (
                changing(str(given.query["unix_socket"]), between, replaced),
                closing(MysqlDatabase(through, deadline=timedelta(seconds=PATIENCE))) as db,
            ):
                if not refused:
                    assert list(db.fetch("SELECT id FROM jobs", ())) == [(1,)]
                    continue
                for _ in range(2):
                    with pytest.raises(BackendFault, match="would let this read-only connection write"):
                        db.fetch("SELECT id FROM jobs", ())
