"""Invalid mappings: each gives one message with the file, the line, the key and a fix."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import PageRequest
from console.core.faults import ConfigFault, Fault, WrongSchema
from console.core.item import Condition
from console.core.query import Filter
from console.registry import open_one
from console.settings import load
from plugins.sql_table import SqlTable
from tests.plugins.postgres_analyses.server import database

EVERYTHING = Filter.parse("condition:*")
DDL = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, status TEXT, attempts INTEGER, run_at TEXT, last_error TEXT, tenant TEXT, number INTEGER,
    size AS (length(status)) STORED, UNIQUE (tenant, number)
);
CREATE TABLE pairs (tenant TEXT, number INTEGER, status TEXT, PRIMARY KEY (tenant, number));
INSERT INTO pairs VALUES ('a/b', 7, 'b'), ('a', 7, 'a');
CREATE TABLE numbers (id INTEGER PRIMARY KEY, status TEXT NOT NULL, tries INTEGER, most INTEGER, last_error TEXT);
CREATE TABLE notes (job_id INTEGER, text TEXT);
CREATE TABLE letters (id INTEGER PRIMARY KEY, status TEXT, body JSON, enclosed XML, seal Blob);
CREATE TABLE "Robert'); DROP TABLE jobs;--" (id INTEGER PRIMARY KEY, status TEXT);
CREATE TABLE "sel""ect ünï %s" ("from" TEXT PRIMARY KEY, "where" TEXT, "a.b" TEXT, "%(x)s ?" TEXT, "größe:x" INT);
INSERT INTO "sel""ect ünï %s" VALUES ('1', 'bad', 'kind', 'it is :x ? %s', 2);
INSERT INTO jobs (id, status, attempts, last_error) VALUES (1, 'failed', 3, 'boom');
"""
GOOD = """\
table: jobs
key: id
status: {column: status, ready: [queued], failed: [failed], done: [done]}
attempts: attempts
error: last_error
"""
GIVEN_UP = GOOD.replace("{", "{{").replace("}", "}}") + "requeue: {{guard: [status], set: {{status: queued}}, attempts: {{keep: {{effect: last_try}}}}}}\ndiscard: {discard}\n"
LETTERS = "table: letters\nkey: id\nstatus: {column: status, ready: [a], failed: [b]}\n"


class Attached:
    """A config with one mapped backend, and its mapping in a file of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.mapping = folder / "jobs.yaml"
        self.config = folder / "config.yaml"
        self._url = url

    def open(self, mapping: str, more: str = "") -> SqlTable:
        self.mapping.write_text(mapping)
        self.mapping.chmod(0o600)
        self.config.write_text(f'backends:\n  jobs: {{plugin: sql_table, url: "{self._url}", mapping: jobs.yaml{more}}}\n')
        self.config.chmod(0o600)
        (backend,) = load(self.config).backends
        opened = open_one(backend, read_only=False, deadline=timedelta(seconds=20))
        assert isinstance(opened, SqlTable)
        return opened

    def list(self, mapping: str) -> None:
        with closing(self.open(mapping)) as opened:
            opened.page(PageRequest(EVERYTHING, opened.now()))

    def problem(self, mapping: str) -> str:
        """What is said about it, with the folder left out."""
        with pytest.raises(Fault) as caught:
            self.list(mapping)
        assert isinstance(caught.value, ConfigFault | WrongSchema)
        return str(caught.value).replace(f"{self.mapping.parent}/", "")


@pytest.fixture
def attached(tmp_path: Path) -> Attached:
    path = tmp_path / "jobs.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(DDL)
    return Attached(tmp_path, f"sqlite:///{path}")


@contextmanager
def in_postgres(folder: Path, ddl: str) -> Iterator[Attached]:
    with database(ddl) as url:
        yield Attached(folder, url)


def without(key: str, *lines: str) -> str:
    kept = [line for line in GOOD.splitlines() if not line.startswith(f"{key}:")]
    return "\n".join([*kept, *lines]) + "\n"


SQL = "remove the ; and write a single expression or statement"
STRUCTURE = [
    (without("table"), "jobs.yaml: table: required, but missing"),
    (without("key"), "jobs.yaml: key: required, but missing"),
    (without("status"), "jobs.yaml: status: required, but missing"),
    (GOOD + "tabel: x\n", "jobs.yaml:6: tabel: unknown key. Did you mean 'table'?"),
    (without("attempts", "attempts: 3"), "jobs.yaml:5: attempts: expected a section of key: value lines, found a number"),
    (without("attempts", "attempts: {column: a, expression: b}"),
     "jobs.yaml:5: attempts: give either a column or an expression"),
    (without("attempts", "attempts: {colum: a}"), "jobs.yaml:5: attempts.colum: unknown key"),
    (without("key", "key: []"), "jobs.yaml:5: key: needs one column or several different columns"),
    (without("key", "key: [id, id]"), "jobs.yaml:5: key: needs one column or several different columns"),
    (without("key", 'key: ""'), "jobs.yaml:5: key: must not be empty"),
    (without("status", "status: {cases: [{condition: ready, when: 1 = 1}], ready: [a]}"),
     "jobs.yaml:5: status: cases must not have native values per condition beside them"),
    (without("status", "status: {ready: [a]}"), "jobs.yaml:5: status: give a column, an expression or a list of cases"),
    (without("status", "status: {column: status, ready: [a], done: [a]}"),
     "jobs.yaml:5: status: a native value is listed under two conditions; keep one"),
    (without("status", "status: {cases: [{condition: broken, when: a}]}"),
     "jobs.yaml:5: status.cases[0].condition: not an accepted value. Known: cancelled, done, failed, ready, retrying,"
     " running, terminal, waiting."),
    (GOOD + "stuck_after: 10\n", "jobs.yaml:6: stuck_after: expected a duration with a unit, such as 30s, 5m, 2h or 30d"),
    (GOOD + "max_attempts: 0\n", "jobs.yaml:6: max_attempts: must be at least 1"),
    (GOOD + "joins: {job: {table: notes, match: {job_id: id}}}\n",
     "jobs.yaml: job is the name of the mapped table; give the join another name"),
    (GOOD + "requeue: {guard: [status], set: {status: queued}}\n", "jobs.yaml:6: requeue.attempts: required, but missing"),
    (GOOD + "requeue: {guard: [], attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue.guard: Tuple should have at least 1 item after validation, not 0"),
    (GOOD + "requeue: {guard: [status], attempts: {}}\n", "jobs.yaml:6: requeue.attempts: give keep, reset, or both"),
    (GOOD + "requeue: {guard: [status], set: {status: {time: soon}}, attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue.set.status.time: not an accepted value. Known: due, now."),
    (GOOD + "requeue: {guard: [status], set: {attempts: {formula: '__import__(1)'}}, attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue.set.attempts.formula: not a formula; write columns and whole numbers with + and -, greatest(…)"
     " and least(…)"),
    (GOOD + "requeue: {guard: [status], set: {attempts: {formula: most + 1}}, attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue: the formula of attempts uses most; add most to guard"),
    # SQL that would leave its place
    (without("attempts", "attempts: {expression: \"1; DROP TABLE jobs\"}"), f"jobs.yaml:5: attempts.expression: {SQL}"),
    (without("attempts", "attempts: {expression: \"1) FROM jobs; --\"}"),
     "jobs.yaml:5: attempts.expression: a ) has no opening bracket"),
    (without("attempts", "attempts: {expression: \"(1\"}"), "jobs.yaml:5: attempts.expression: a ( is not closed"),
    (without("attempts", "attempts: {expression: \"1 -- the rest\"}"),
     "jobs.yaml:5: attempts.expression: comments are not allowed in SQL here"),
    (without("attempts", "attempts: {expression: \"1 /* x */\"}"),
     "jobs.yaml:5: attempts.expression: comments are not allowed in SQL here"),
    (without("attempts", "attempts: {expression: \"'open\"}"), "jobs.yaml:5: attempts.expression: a quote is not closed"),
    (without("attempts", "attempts: {expression: \"$$x$$\"}"),
     "jobs.yaml:5: attempts.expression: dollar quotes are not allowed in SQL here"),
    (without("attempts", "attempts: {expression: \"1 + :now\"}"), "jobs.yaml:5: attempts.expression: unknown value :now"),
    (without("attempts", "attempts: {expression: \"\"}"), "jobs.yaml:5: attempts.expression: expected SQL, found nothing"),
    (GOOD + "discard: {set: {status: done}}\n", "jobs.yaml: discard needs a requeue section, whose guard it uses"),
    (GIVEN_UP.format(discard="{}"), "jobs.yaml:7: discard: give what to set, or delete"),
    (GIVEN_UP.format(discard="{set: {status: done}, delete: true}"), "jobs.yaml:7: discard: give what to set, or delete"),
    (GIVEN_UP.format(discard="{set: {run_at: {time: due}}}"), "jobs.yaml:7: discard: a discarded item is never due; use the time now"),
    (GIVEN_UP.format(discard="{delete: true, statements: ['DELETE FROM jobs WHERE id = :key AND run_at < :now RETURNING id']}"),
     "jobs.yaml:7: discard: statements that delete a row can only use :key"),
    (GIVEN_UP.format(discard="{set: {attempts: {formula: most + 1}}}"),
     "jobs.yaml: the formula of attempts uses most; add most to requeue.guard"),
    (GOOD + "requeue: {guard: [status], attempts: {keep: {effect: last_try}}, statements: [\"DELETE FROM jobs; SELECT 1\"]}\n",
     f"jobs.yaml:6: requeue.statements[0]: {SQL}"),
    (GOOD + "requeue: {guard: [status], attempts: {keep: {effect: last_try}}, statements: [\"DELETE FROM jobs WHERE id = :id\"]}\n",
     "jobs.yaml:6: requeue.statements[0]: unknown value :id; allowed here: :due, :key, :now"),
    (GOOD + "requeue: {guard: [status], attempts: {keep: {effect: last_try}}, statements: [\"UPDATE jobs SET run_at = :due WHERE id = :key\"]}\n",
     "jobs.yaml:6: requeue: due is used, so a column in set must have it as its time"),
    (GOOD + "requeue: {guard: [status], attempts: {keep: {effect: last_try}}, statements: [\"UPDATE jobs SET status = 'queued' RETURNING id\"]}\n",
     "jobs.yaml:6: requeue.statements[0]: must contain :key, or it would write other rows, too"),
    (GIVEN_UP.format(discard="{delete: true, statements: ['DELETE FROM jobs RETURNING id']}"),
     "jobs.yaml:7: discard.statements[0]: must contain :key, or it would write other rows, too"),
    ("", "jobs.yaml: the file is empty. Start from config.example.yaml."),
    ("a: &x 1\nb: *x\n", None),
]


@pytest.mark.parametrize(("mapping", "expected"), STRUCTURE)
def test_invalid_mappings(attached: Attached, mapping: str, expected: str | None) -> None:
    problem = attached.problem(mapping)
    if expected is None:
        assert "aliases (*name) are not allowed" in problem
    else:
        assert problem == expected


NUMBERS = GOOD.replace("table: jobs", "table: numbers").replace("attempts: attempts", "attempts: tries")
RESET = "requeue: {{guard: [status], set: {{status: queued}}, attempts: {{reset: {{effect: reset, set: {{{set}}}}}}}}}\n"
REQUEUE = "requeue: {{guard: [status], set: {{{set}}}, attempts: {{keep: {{effect: last_try}}}}}}\n"
AGAINST_SQLITE = [
    (without("table", "table: job"), "jobs.yaml:5: jobs.db: {wrong}: there is no table 'job'. Check url, schema and table in"
     " the config. `retriage map` lists the tables."),
    (without("table", "table: \"jobs; DROP TABLE jobs\""), "jobs.yaml:5: jobs.db: {wrong}: there is no table"
     " 'jobs; DROP TABLE jobs'. Check url, schema and table in the config. `retriage map` lists the tables."),
    (without("attempts", "attempts: attemps"), "jobs.yaml:5: jobs.db: {wrong}: attempts: table 'jobs' has no column"
     " 'attemps'. Did you mean 'attempts'?"),
    (without("error", "error: \"last_error FROM jobs --\""), "jobs.yaml:5: jobs.db: {wrong}: error: table 'jobs' has no"
     " column 'last_error FROM jobs --'. Did you mean 'last_error'?"),
    (without("key", "key: status"), "jobs.yaml:5: jobs.db: {wrong}: key: status is not unique."
     " Unique are: id; number, tenant."),
    (without("key", "key: [tenant]"), "jobs.yaml:5: jobs.db: {wrong}: key: tenant is not unique."
     " Unique are: id; number, tenant."),
    (without("key", "key: [number, tenant]"),
     "jobs.yaml:5: jobs.db: {wrong}: key: 'number' can be NULL, so it cannot be a key"),
    (without("attempts", "attempts: {expression: job.attemps + 1}"), "jobs.yaml:5: jobs.db: {wrong}: attempts: the database"
     " rejects the expression: no such column: job.attemps"),
    (without("attempts", "attempts: {expression: \"(SELECT count(*) FROM {gone})\"}"),
     "jobs.yaml:5: jobs.db: {wrong}: attempts: there is no table 'gone'"),
    (GOOD + "joins: {note: {table: notes, match: {job_id: id}}}\n", "jobs.yaml:6: jobs.db: {wrong}: joins.note.match: 'notes'"
     " can have several rows for one job. The matched columns need a unique index. A table of past attempts belongs"
     " under history."),
    (GOOD + "joins: {note: {table: nots, match: {job_id: id}}}\n",
     "jobs.yaml:6: jobs.db: {wrong}: joins.note.table: there is no table 'nots'"),
    (GOOD + "joins: {note: {table: notes, match: {job: id}}}\n", "jobs.yaml:6: jobs.db: {wrong}: joins.note.match: table"
     " 'notes' has no column 'job'. Did you mean 'job_id'?"),
    (GOOD + REQUEUE.format(set="state: queued"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.state: table 'jobs' has no"
     " column 'state'. Did you mean 'status'?"),
    (GOOD + REQUEUE.format(set="size: 3"),
     "jobs.yaml:6: jobs.db: {wrong}: requeue.set.size: 'size' is a generated column and cannot be set"),
    (GOOD + "requeue: {guard: [last_error], set: {status: queued}, attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: jobs.db: {wrong}: requeue.guard.0: 'last_error' would store an error text in the trail. Use read and write"
     " to compare and set only a part of it."),
    (LETTERS + "requeue: {guard: [body], set: {status: a}, attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: jobs.db: {wrong}: requeue.guard.0: 'body' would store a payload in the trail. Use read and write"
     " to compare and set only a part of it."),
    (LETTERS + "requeue: {guard: [enclosed], set: {status: a}, attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: jobs.db: {wrong}: requeue.guard.0: 'enclosed' would store a payload in the trail. Use read and write"
     " to compare and set only a part of it."),
    (LETTERS + "requeue: {guard: [seal], set: {status: a}, attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: jobs.db: {wrong}: requeue.guard.0: 'seal' would store a payload in the trail. Use read and write"
     " to compare and set only a part of it."),
    (GOOD + "history: {table: nots, match: {job_id: id}, at: at}\n",
     "jobs.yaml:6: jobs.db: {wrong}: history.table: there is no table 'nots'"),
    (GOOD + "history: {table: notes, match: {job_id: id}, at: when}\n",
     "jobs.yaml:6: jobs.db: {wrong}: history.at: table 'notes' has no column 'when'. It has job_id, text."),
    (GOOD + "history: {table: notes, match: {job: id}, at: job_id}\n",
     "jobs.yaml:6: jobs.db: {wrong}: history.match: table 'notes' has no column 'job'. It has job_id, text."),
    (GOOD + "history: {table: notes, match: {job_id: ident}, at: job_id}\n",
     "jobs.yaml:6: jobs.db: {wrong}: history.match: table 'jobs' has no column 'ident'. It has id, status,"
     " attempts, run_at, last_error, tenant, number, size."),
    (GOOD + "history: {table: notes, match: {job_id: id}, at: job_id, outcome: how}\n",
     "jobs.yaml:6: jobs.db: {wrong}: history.outcome: table 'notes' has no column 'how'. It has job_id, text."),
    (GOOD + "history: {column: log, at: at}\n", "jobs.yaml:6: jobs.db: {wrong}: history.column: table 'jobs' has no column"
     " 'log'. It has id, status, attempts, run_at, last_error, tenant, number, size."),
    (GOOD + REQUEUE.format(set="status: queued, id: 7"),
     "jobs.yaml:6: jobs.db: {wrong}: requeue.set.id: 'id' is the key of the row and cannot be set"),
    (GIVEN_UP.format(discard="{set: {status: done, id: {formula: id + 1}}}"),
     "jobs.yaml:7: jobs.db: {wrong}: discard.set.id: 'id' is the key of the row and cannot be set"),
    (NUMBERS + RESET.format(set="tries: 99"), "jobs.yaml:6: jobs.db: {wrong}: requeue.attempts.reset.set.tries: a reset would"
     " write 99, so the attempts would not start again. Write 0."),
    (NUMBERS + RESET.format(set=""), "jobs.yaml:6: jobs.db: {wrong}: requeue.attempts.reset: a reset would leave tries as it"
     " is. Set it to 0, or name another effect."),
    (NUMBERS + "max_attempts: most\n" + RESET.format(set="tries: 0, most: 0"), "jobs.yaml:7: jobs.db: {wrong}:"
     " requeue.attempts.reset.set.most: a requeue would allow 0 attempts. Give a number above 0."),
    (NUMBERS + "max_attempts: most\n" + RESET.format(set="tries: 1, most: 1"), "jobs.yaml:7: jobs.db: {wrong}:"
     " requeue.attempts.reset.set.tries: a requeue would write 1, and 1 attempts are allowed. Write 0."),
    (NUMBERS + "max_attempts: 3\n" + REQUEUE.format(set="status: queued, tries: 3"), "jobs.yaml:7: jobs.db: {wrong}:"
     " requeue.set.tries: a requeue would write 3, and 3 attempts are allowed. Write a smaller number."),
    (NUMBERS + REQUEUE.format(set="status: null"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.status: the column must not be NULL"),
    (GOOD + "requeue: {guard: [status], set: {status: queued}, attempts: {keep: {effect: last_try}}, function: {name: again}}\n",
     "jobs.yaml:6: jobs.db: {wrong}: requeue.function: SQLite has no stored functions"),
    (without("status", 'status: {column: number, ready: [1], failed: ["2"], done: [2]}'), "jobs.yaml:5: jobs.db: {wrong}:"
     " status: '2' and 2 are the same value in a column of type INTEGER. Keep one of them."),
    (without("status", 'status: {column: number, failed: [1], done: ["+1"]}'), "jobs.yaml:5: jobs.db: {wrong}:"
     " status: 1 and '+1' are the same value in a column of type INTEGER. Keep one of them."),
    (without("status", 'status: {column: status, ready: [2, "2"], failed: [failed]}'), "jobs.yaml:5: jobs.db: {wrong}:"
     " status: 2 and '2' are the same value in a column of type TEXT. Keep one of them."),
    (GOOD + REQUEUE.format(set="status: waiting"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.status: a requeue would write"
     " 'waiting', which status does not know. Its system takes: queued."),
    (GOOD + REQUEUE.format(set="status: failed"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.status: a requeue would write"
     " 'failed', which status calls failed, not ready. Its system takes: queued."),
    (GOOD + REQUEUE.format(set="status: {value: queued, later: done}"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.status:"
     " a requeue would write 'done', which status calls done, not ready. Its system takes: queued."),
    (without("status", "status: {column: number, ready: [0], failed: [2]}") + REQUEUE.format(set='number: {formula: "number - 1"}'),
     "jobs.yaml:6: jobs.db: {wrong}: requeue.set.number: a requeue would compute number, so it could be anything. Give a"
     " value. Its system takes: 0."),
    (GOOD + REQUEUE.format(set="status: {time: now}"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.status: a requeue would"
     " compute status, so it could be anything. Give a value. Its system takes: queued."),
    (GOOD + REQUEUE.format(set='status: {value: queued, read: job.status, write: "upper(:value)"}'),
     "jobs.yaml:6: jobs.db: {wrong}: requeue.set.status: a requeue would compute status, so it could be anything. Give a"
     " value. Its system takes: queued."),
    (GIVEN_UP.format(discard="{set: {status: {time: now}}}"),
     "jobs.yaml:7: jobs.db: {wrong}: discard.set.status: a discard would compute status, so it could be anything. Give a"
     " value. Its system never takes: done."),
    (GIVEN_UP.format(discard="{set: {status: queued}}"), "jobs.yaml:7: jobs.db: {wrong}: discard.set.status: a discard would write"
     " 'queued', which status calls ready. Its system never takes: done."),
    (GIVEN_UP.format(discard="{set: {status: failed}}"), "jobs.yaml:7: jobs.db: {wrong}: discard.set.status: a discard would write"
     " 'failed', which status calls failed. Its system never takes: done."),
    (GIVEN_UP.format(discard="{set: {status: dropped}}"), "jobs.yaml:7: jobs.db: {wrong}: discard.set.status: a discard would write"
     " 'dropped', which status does not know. Its system never takes: done."),
    (GIVEN_UP.format(discard="{set: {attempts: 9}}"), "jobs.yaml:7: jobs.db: {wrong}: discard.set: a discard would not change"
     " status. Its system never takes: done."),
    (GIVEN_UP.format(discard="{set: {state: done}}"), "jobs.yaml:7: jobs.db: {wrong}: discard.set.state: table 'jobs' has no"
     " column 'state'. Did you mean 'status'?"),
    (GOOD + REQUEUE.format(set="attempts: 0"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set: a requeue would leave status at"
     " 'failed', which is not ready. Its system takes: queued."),
    (GOOD + "time_zone: Mars/Olympus\n", "jobs.yaml:6: unknown time zone 'Mars/Olympus'."
     " Set time_zone to a name such as Europe/Berlin."),
]
WRONG = "The schema does not match"


@pytest.mark.parametrize(("mapping", "expected"), AGAINST_SQLITE)
def test_mappings_that_do_not_fit_an_sqlite_file(attached: Attached, mapping: str, expected: str) -> None:
    assert attached.problem(mapping) == expected.format(wrong=WRONG)


POSTGRES = """
CREATE TYPE mood AS ENUM ('new', 'bad', 'good');
CREATE TABLE jobs (
    id int PRIMARY KEY, other int UNIQUE, mood mood, status text, done boolean, attempts text, tries numeric, run_at text,
    made bigint, at timestamptz, body jsonb, shape point, size int GENERATED ALWAYS AS (length(status)) STORED
);
"""
PG = "table: jobs\nkey: id\nstatus: {column: status, ready: [a], failed: [b]}\n"
AGAINST_POSTGRES = [
    (PG + "attempts: attempts\n", "jobs.yaml:4: {place}: {wrong}: attempts: is text, not an integer"),
    (PG + "attempts: tries\n", "jobs.yaml:4: {place}: {wrong}: attempts: is numeric, not an integer"),
    (PG + "next_run: run_at\n", "jobs.yaml:4: {place}: {wrong}: next_run: is text, not a time"),
    (PG + "next_run: made\n", "jobs.yaml:4: {place}: {wrong}: next_run: is bigint, not a time; use `times: epoch` or"
     " `times: epoch_ms` if it counts from 1970"),
    (PG + "next_run: at\ntimes: epoch\n", "jobs.yaml:4: {place}: {wrong}: next_run: is timestamp with time zone, not a number;"
     " remove `times`"),
    (PG + "error: {column: made, as: json}\n", "jobs.yaml:4: {place}: {wrong}: error: is bigint, not JSON"),
    ("table: jobs\nkey: other\nstatus: {column: status, ready: [a]}\n",
     "jobs.yaml:2: {place}: {wrong}: key: 'other' can be NULL, so it cannot be a key"),
    ("table: jobs\nkey: shape\nstatus: {column: status, ready: [a]}\n",
     "jobs.yaml:2: {place}: {wrong}: key: 'shape' is point; a key must be a number, a uuid or text"),
    ("table: jobs\nkey: id\nstatus: {column: mood, ready: [neu]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: 'neu' is not a value of mood. Its values are new, bad, good."),
    ("table: jobs\nkey: id\nstatus: {column: done, done: [\"yes\"]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: 'yes' does not fit a column of type boolean"),
    ("table: jobs\nkey: id\nstatus: {column: status, ready: [1]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: 1 does not fit a column of type text"),
    ("table: jobs\nkey: id\nstatus: {column: tries, failed: [\"2\"], done: [2]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: '2' and 2 are the same value in a column of type numeric. Keep one of them."),
    ("table: jobs\nkey: id\nstatus:\n  cases:\n    - {condition: done, when: job.id + 1}\n",
     "jobs.yaml:5: {place}: {wrong}: status.cases.0.when: is integer, not boolean"),
    ("schema: elsewhere\n" + PG, "jobs.yaml:2: {place}: {wrong}: there is no table 'elsewhere.jobs'. Check url, schema and table"
     " in the config. `retriage map` lists the tables."),
    (PG + "requeue: {guard: [status], set: {status: a}, attempts: {keep: {effect: plus_one}}, function: {name: again, arguments: [key]}}\n",
     "jobs.yaml:4: {place}: {wrong}: requeue.function.name: there is no function 'again'"),
    (PG + REQUEUE.format(set="done: 1"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.done: 1 does not fit a column of type boolean"),
    (PG + REQUEUE.format(set="made: true"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.made: True does not fit a column of type bigint"),
    (PG + REQUEUE.format(set="mood: neu"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.mood: 'neu' is not a value of mood. Its values are new, bad, good."),
    (PG + REQUEUE.format(set="made: {time: due}"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.made: is bigint, not a time; use `times: epoch` or"
     " `times: epoch_ms` if it counts from 1970"),
    (PG + "requeue: {guard: [status, body], attempts: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: {place}: {wrong}: requeue.guard.1: 'body' would store a payload in the trail. Use read and write"
     " to compare and set only a part of it."),
    (PG + REQUEUE.format(set="size: 3"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.size: 'size' is a generated column and cannot be set"),
]


def test_a_text_and_a_number_are_two_values_where_a_column_holds_both(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "both.db")) as connection:
        connection.executescript("CREATE TABLE both (id INTEGER PRIMARY KEY, status); INSERT INTO both VALUES (1, 2), (2, '2')")
    mapping = 'table: both\nkey: id\nstatus: {column: status, failed: ["2"], done: [2]}\n'
    with closing(Attached(tmp_path, f"sqlite:///{tmp_path}/both.db").open(mapping)) as opened:
        found = {item.key.id: item.condition for item in opened.page(PageRequest(EVERYTHING, opened.now())).items}
    assert found == {"1": Condition.DONE, "2": Condition.FAILED}


def test_mappings_that_do_not_fit_a_postgres_database(tmp_path: Path) -> None:
    """One server, many mappings."""
    with in_postgres(tmp_path, POSTGRES) as attached:
        for mapping, expected in AGAINST_POSTGRES:
            place = attached.open(PG).database.place
            assert attached.problem(mapping) == expected.format(wrong=WRONG, place=place)


# --- names that are odd but right -----------------------------------------------------------------------------

ODD = {
    "a table that tries to be SQL": "table: \"Robert'); DROP TABLE jobs;--\"\nkey: id\nstatus: {column: status, ready: [a]}\n",
    "quotes, spaces, percents and letters of elsewhere": (
        'table: "sel\\"ect ünï %s"\nkey: from\nstatus: {column: where, ready: [new], failed: [bad]}\ntype: a.b\n'
        'error: "%(x)s ?"\nattempts: "größe:x"\nreferences: [a.b]\n'
        'requeue: {guard: [where, "größe:x", a.b], set: {where: new}, attempts: {keep: {effect: last_try}}}\n'
    ),
    "two columns as a key": "table: pairs\nkey: [tenant, number]\nstatus: {column: status, ready: [a], failed: [b]}\n",
}


@pytest.mark.parametrize("mapping", ODD.values(), ids=ODD)
def test_odd_names_work(attached: Attached, mapping: str) -> None:
    opened = attached.open(mapping)
    now = opened.now()
    for item in opened.page(PageRequest(EVERYTHING, now)).items:
        assert opened.item(item.key, now).item == item
    opened.close()


ODD_POSTGRES = """
CREATE SCHEMA "sch.ema";
CREATE TABLE "sch.ema"."sel""ect ünï %s" ("from" text PRIMARY KEY, "where" text, "a.b" text, "%(x)s ?" text, "größe:x" int);
INSERT INTO "sch.ema"."sel""ect ünï %s" VALUES ('1', 'bad', 'kind', 'it is :x ? %s', 2);
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_row_behind_odd_names_is_listed_and_requeued(attached: Attached, tmp_path: Path, kind: str) -> None:
    from tests.plugins.postgres_analyses.operating import operating

    mapping = ODD["quotes, spaces, percents and letters of elsewhere"]
    if kind == "sqlite":
        with operating(attached.open(mapping), tmp_path) as ann:
            _requeued(ann)
        return
    with in_postgres(tmp_path, ODD_POSTGRES) as there, operating(there.open("schema: sch.ema\n" + mapping), tmp_path) as ann:
        _requeued(ann)


def _requeued(ann) -> None:  # type: ignore[no-untyped-def]
    key = ann.key("1")
    item = ann.backend.items([key], ann.backend.now())[key]
    assert (item.type, item.error, item.attempts, item.condition.value) == ("kind", "it is :x ? %s", 2, "failed")
    assert ann.outcomes(ann.requeue("1")) == {("applied", ""): 1}
    assert ann.backend.items([key], ann.backend.now())[key].native_status == "new"
    assert {finding.subject for finding in ann.backend.check(_Clock(ann.backend))} >= {"schema", "guard", "clock"}


class _Clock:
    def __init__(self, backend) -> None:  # type: ignore[no-untyped-def]
        self.now = backend.now

    def sleep(self, seconds: float) -> None:
        """Nobody waits here."""


# --- where the file is ----------------------------------------------------------------------------------------


def test_a_mapping_others_can_write_is_refused(attached: Attached) -> None:
    attached.open(GOOD).close()
    attached.mapping.chmod(0o666)
    (backend,) = load(attached.config).backends
    with pytest.raises(ConfigFault, match="Others can write to this file"):
        open_one(backend, read_only=True, deadline=timedelta(seconds=5))


def test_a_mapping_may_be_written_out_and_its_lines_are_the_configs(attached: Attached) -> None:
    indented = "".join(f"      {line}\n" for line in without("attempts", "attempts: attemps").splitlines())
    place = attached.mapping.parent / "jobs.db"
    attached.config.write_text(f"backends:\n  jobs:\n    plugin: sql_table\n    url: sqlite:///{place}\n    mapping:\n{indented}")
    attached.config.chmod(0o600)
    (backend,) = load(attached.config).backends
    opened = open_one(backend, read_only=True, deadline=timedelta(seconds=5))
    with pytest.raises(WrongSchema) as caught:
        opened.page(PageRequest(EVERYTHING, opened.now()))
    opened.close()
    assert str(caught.value).startswith(f"{attached.config}:10: {place}: ")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("preset: rivr", "Unknown preset 'rivr'. Presets: bullmq_postgres, dbos, delayed_job, "),
        ("", "give either a preset or a mapping"),
        ("preset: river, mapping: jobs.yaml", "give either a preset or a mapping"),
        ("mapping: nowhere.yaml", "No such file"),
    ],
)
def test_where_a_mapping_comes_from(attached: Attached, options: str, expected: str) -> None:
    attached.open(GOOD).close()
    attached.config.write_text(f'backends:\n  jobs: {{plugin: sql_table, url: "sqlite:////tmp/x.db"{options and ", " + options}}}\n')
    (backend,) = load(attached.config).backends
    with pytest.raises(ConfigFault) as found:
        open_one(backend, read_only=True, deadline=timedelta(seconds=5))
    assert expected in str(found.value)


def test_expressions_can_only_read_in_audit_mode(attached: Attached) -> None:
    """A declared expression is SQL; the connection it runs on cannot write, whatever it says."""
    opened = attached.open(without("attempts", "attempts: {expression: \"(SELECT 1 FROM jobs WHERE id = 1)\"}"))
    assert [item.attempts for item in opened.page(PageRequest(EVERYTHING, opened.now())).items] == [1]
    opened.close()


def test_an_expression_that_writes_is_refused_by_the_database(tmp_path: Path) -> None:
    ddl = (
        "CREATE TABLE jobs (id int PRIMARY KEY, status text); INSERT INTO jobs VALUES (1, 'a');"
        " CREATE FUNCTION mark() RETURNS int LANGUAGE sql AS $$ UPDATE jobs SET status = 'b' RETURNING 1 $$"
    )
    with in_postgres(tmp_path, ddl) as attached:
        opened = attached.open("table: jobs\nkey: id\nstatus: {column: status, ready: [a]}\nattempts: {expression: mark()}\n")
        with pytest.raises(Fault, match="this connection may only read"):
            opened.page(PageRequest(EVERYTHING, opened.now()))
        assert opened.database.fetch("SELECT status FROM jobs", {}) == [("a",)]
        opened.close()
