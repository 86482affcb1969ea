"""Values of many megabytes in any column need no more memory than short ones, and never stop a list or a plan."""

from __future__ import annotations

import json
import secrets
import sqlite3
import subprocess
import sys
from contextlib import closing, nullcontext

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from console.core.action_rules import TOO_LARGE
from console.sql.times import LONGEST_TIME, UTC_TEXT, IsoText
from console.sql.values import LARGEST_OWN_VALUE
from tests.cli.place import Place, environment, failed
from tests.depth import in_depth
from tests.mariadb import database as mariadb
from tests.plugins.postgres_analyses.server import database as postgres

ROWS, MEGABYTES = 8, 16
COLUMNS = ("task_type", "entity_id", "attempts", "last_error", "created_at", "updated_at")
"""Without next_run_at: a list in its order compares whole values, so it reads them."""
GUARDED = ("attempts", "created_at", "updated_at")
"""What a requeue compares and sets."""

MEASURED = """
import sys
from console.__main__ import main
code = main(sys.argv[1:])
print(int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024, file=sys.stderr)
sys.exit(code)
"""


def measured(place: Place, *arguments: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """The command in a process of its own, and the megabytes it needed."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "--config", str(place.write_config()), *arguments],
        env=environment(place.folder), capture_output=True, text=True, check=False,
    )
    return done, int(done.stderr.split()[-1])


@pytest.mark.parametrize("column", in_depth(COLUMNS, quick=["task_type", "updated_at"]))
def test_a_list_and_a_plan_of_huge_values_stay_small(place: Place, column: str) -> None:
    place.deadline = "60s"
    path = place.queue("q", *(failed(f"{n}") for n in range(ROWS)))
    with sqlite3.connect(path) as connection:
        size = MEGABYTES * 500_000
        connection.execute(f"UPDATE async_tasks SET {column} = '2026-01-01' || hex(zeroblob({size}))")
        connection.execute("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", failed("small"))
    connection.close()
    listed, for_list = measured(place, "list", "--where", "condition:*", "--format", "jsonl")
    assert len(listed.stdout.splitlines()) == ROWS + 1, listed.stderr
    assert len(listed.stdout) < 200_000
    planned, for_plan = measured(place, "plan", "--where", "condition:*", "--attempts", "reset", "--all", "--items", "--format", "json")
    plan = json.loads(planned.stdout)
    assert plan["selected"] == ROWS + 1
    too_large = [reason for reason in plan["skipped"] if "larger than 64 kB" in reason]
    assert bool(too_large) == (column in GUARDED), plan["skipped"]
    ignored = column in GUARDED or column == "task_type"  # its worker takes only the configured types
    assert plan["changes"] == (1 if ignored else ROWS + 1)
    assert max(for_list, for_plan) < 120 + 4 * MEGABYTES


def test_a_text_that_is_too_long_for_a_time_is_not_read_to_find_out() -> None:
    """SQLite cannot be interrupted while one of our functions reads a text of many megabytes."""
    seen: list[int] = []
    time = IsoText()
    valid = "2026-11-01T12:00:00." + "0" * 38 + "+00:00"
    texts = [valid, valid.replace(".", ".0"), valid[:19] + "0" * 1_000_000 + "+00:00", valid[:19] + "x" * 1_000_000]
    assert (len(valid), time.decode(valid) is not None) == (LONGEST_TIME, True)

    def noted(raw: bytes | None) -> str | None:
        seen.append(len(raw or b""))
        found: str | None = time.functions[UTC_TEXT](raw)
        return found

    with closing(sqlite3.connect(":memory:")) as connection:
        connection.create_function(UTC_TEXT, 1, noted)
        connection.execute("CREATE TABLE t (at)")
        connection.executemany("INSERT INTO t VALUES (?)", [(text,) for text in texts])
        for shape in (time.compared, time.ordered):
            sql = f"SELECT {shape(sa.column('at')).compile(dialect=sqlite.dialect())} FROM t"
            found = [value is not None for (value,) in connection.execute(sql)]
            assert found == [time.decode(text) is not None for text in texts] == [True, False, False, False]
    assert max(seen) <= LONGEST_TIME


def test_a_text_with_a_nul_is_cut_by_what_follows_it_too(place: Place) -> None:
    """SQLite's length of a text ends at a NUL; what Python would read does not."""
    path = place.queue("q", failed("a"), failed("b"))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE async_tasks SET task_type = 'A' || char(0) || ? WHERE task_id = 'a'", ("x" * 500_000,))
        connection.execute("UPDATE async_tasks SET updated_at = '2026' || char(0) || ? WHERE task_id = 'b'", ("x" * 500_000,))
    connection.close()
    assert len(place.run("list", "--where", "condition:*").out) < 20_000
    plan = json.loads(place.run("plan", "--where", "condition:*", "--attempts", "reset", "--all").out)
    assert plan["skipped"][TOO_LARGE.text] == 1


MAPPED = """\
  made:
    plugin: sql_table
    url: {url}
    mapping:
      table: jobs
      key: id
      status: {{column: status, ready: [queued], failed: [bounced], done: [sent]}}
      attempts: tries
      max_attempts: 5
      requeue:
        guard: [status, tries, worker]
        set: {{status: queued}}
        attempts: {{keep: {{effect: last_try}}}}
"""
MAPPED_DDL = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, status VARCHAR(20), tries INTEGER, worker {text})"
JOB = "INSERT INTO jobs VALUES (:id, 'bounced', 1, :worker)"


@pytest.mark.parametrize("system", ["sqlite", "postgresql", "mysql"])
def test_an_item_of_a_mapped_table_with_a_large_column_of_its_own_is_skipped(place: Place, system: str) -> None:
    place.deadline = "60s"
    with {"sqlite": lambda: nullcontext(f"sqlite:///{place.folder}/made.db"), "postgresql": postgres, "mysql": mariadb}[system]() as url:
        made = sa.create_engine(sa.make_url(url).set(drivername={"sqlite": "sqlite", "postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}[system]))
        with made.begin() as connection:
            connection.execute(sa.text(MAPPED_DDL.format(text="LONGTEXT" if system == "mysql" else "TEXT")))
            large = secrets.token_hex(200_000)
            connection.execute(sa.text(JOB), [{"id": 1, "worker": "w"}, {"id": 2, "worker": large}, {"id": 3, "worker": None}])
        made.dispose()
        place.sections["made"] = MAPPED.format(url=json.dumps(url))
        plan = json.loads(place.run("plan", "--where", "condition:*", "--all").out)
        assert (plan["selected"], plan["changes"], plan["skipped"]) == (3, 2, {TOO_LARGE.text: 1})
        assert place.run("apply", plan["plan_id"], "--reason", "r", "--confirm", "2").code == 0


@pytest.mark.parametrize("mapped", [False, True], ids=["declared", "mapped"])
def test_a_plan_of_huge_keys_stays_small(place: Place, mapped: bool) -> None:
    """Only SQLite has such keys: the indexes of servers refuse them."""
    place.deadline = "60s"
    path = place.queue("q", *(failed(f"{n}") for n in range(ROWS)))
    key = f"task_id || hex(zeroblob({MEGABYTES * 500_000}))"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE jobs (id TEXT PRIMARY KEY, status VARCHAR(20), tries INTEGER, worker TEXT)")
        connection.execute(f"INSERT INTO jobs SELECT {key}, 'bounced', 1, 'w' FROM async_tasks")
        connection.execute("INSERT INTO jobs VALUES ('small', 'bounced', 1, 'w')")
        connection.execute(f"UPDATE async_tasks SET task_id = {key}")
        connection.execute("INSERT INTO async_tasks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", failed("small"))
    connection.close()
    if mapped:
        place.sections = {"made": MAPPED.format(url=json.dumps(f"sqlite:///{path}"))}
    attempts = () if mapped else ("--attempts", "reset")
    planned, for_plan = measured(place, "plan", "--where", "condition:*", *attempts, "--all", "--items", "--format", "json")
    plan = json.loads(planned.stdout)
    assert (plan["selected"], plan["changes"], plan["skipped"]) == (ROWS + 1, 1, {TOO_LARGE.text: ROWS})
    assert len(planned.stdout) < 200_000
    assert for_plan < 120 + 4 * MEGABYTES
    applied = place.run("apply", plan["plan_id"], "--reason", "r", "--confirm", "1")
    assert applied.code == 0, applied.err


def test_values_that_postgres_stores_compressed_are_not_small(place: Place) -> None:
    """5 MB of one letter are stored in 57 kB."""
    place.deadline = "60s"
    with postgres() as url:
        made = sa.create_engine(sa.make_url(url).set(drivername="postgresql+psycopg"))
        with made.begin() as connection:
            connection.execute(sa.text(MAPPED_DDL.format(text="TEXT")))
            connection.execute(sa.text("INSERT INTO jobs SELECT n, 'bounced', 1, repeat('x', 5000000) FROM generate_series(1, 60) n"))
            sizes = "SELECT max(pg_column_size(worker)), max(octet_length(worker)) FROM jobs"
            assert tuple(connection.execute(sa.text(sizes)).one()) < (LARGEST_OWN_VALUE, 5_000_001)
            connection.execute(sa.text(JOB), [{"id": 100, "worker": "w"}, {"id": 101, "worker": "x" * 60_000}, {"id": 102, "worker": None}])
        made.dispose()
        place.sections["made"] = MAPPED.format(url=json.dumps(url))
        planned, for_plan = measured(place, "plan", "--where", "condition:*", "--all", "--format", "json")
    plan = json.loads(planned.stdout)
    assert (plan["selected"], plan["changes"], plan["skipped"]) == (63, 3, {TOO_LARGE.text: 60})
    assert for_plan < 120 + 4 * MEGABYTES
