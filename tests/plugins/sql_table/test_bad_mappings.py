"""Mappings that cannot be used: each gets one line that names the file, the line, the key, and what would fit."""

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
        with pytest.raises(Fault) as told:
            self.list(mapping)
        assert isinstance(told.value, ConfigFault | WrongSchema)
        return str(told.value).replace(f"{self.mapping.parent}/", "")


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


SQL = "a ; would end the statement; write one expression"
STRUCTURE = [
    (without("table"), "jobs.yaml: table: is required and missing"),
    (without("key"), "jobs.yaml: key: is required and missing"),
    (without("status"), "jobs.yaml: status: is required and missing"),
    (GOOD + "tabel: x\n", "jobs.yaml:6: tabel: not a known key; did you mean table?"),
    (without("attempts", "attempts: 3"), "jobs.yaml:5: attempts: expected a section of key: value lines, got a number"),
    (without("attempts", "attempts: {column: a, expression: b}"),
     "jobs.yaml:5: attempts: name a column, or an expression, not both and not neither"),
    (without("attempts", "attempts: {colum: a}"), "jobs.yaml:5: attempts.colum: not a known key"),
    (without("key", "key: []"), "jobs.yaml:5: key: needs one column, or several different ones"),
    (without("key", "key: [id, id]"), "jobs.yaml:5: key: needs one column, or several different ones"),
    (without("key", 'key: ""'), "jobs.yaml:5: key: a name must not be empty"),
    (without("status", "status: {column: status}"),
     "jobs.yaml:5: status: a column needs its native values per condition, cases have none"),
    (without("status", "status: {ready: [a]}"), "jobs.yaml:5: status: name a column, an expression, or a list of cases"),
    (without("status", "status: {column: status, ready: [a], done: [a]}"),
     "jobs.yaml:5: status: a native value has two conditions; keep one"),
    (without("status", "status: {cases: [{condition: broken, when: a}]}"),
     "jobs.yaml:5: status.cases[0].condition: not one of the choices; known here: cancelled, done, failed, ready, retrying,"
     " running, terminal, waiting"),
    (GOOD + "stuck_after: 10\n", "jobs.yaml:6: stuck_after: expected a duration with a unit, such as 30s, 5m, 2h or 30d"),
    (GOOD + "max_attempts: 0\n", "jobs.yaml:6: max_attempts: must be at least 1"),
    (GOOD + "joins: {job: {table: notes, match: {job_id: id}}}\n",
     "jobs.yaml: job is the mapped table itself; give the join another name"),
    (GOOD + "requeue: {guard: [status], set: {status: queued}}\n", "jobs.yaml:6: requeue.budgets: is required and missing"),
    (GOOD + "requeue: {guard: [], budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue.guard: Tuple should have at least 1 item after validation, not 0"),
    (GOOD + "requeue: {guard: [status], budgets: {}}\n", "jobs.yaml:6: requeue.budgets: give keep, fresh, or both"),
    (GOOD + "requeue: {guard: [status], set: {status: {time: soon}}, budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue.set.status.time: not one of the choices; known here: due, now"),
    (GOOD + "requeue: {guard: [status], set: {attempts: {formula: '__import__(1)'}}, budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue.set.attempts.formula: not a formula; write columns and whole numbers with + and -, greatest(…)"
     " and least(…)"),
    (GOOD + "requeue: {guard: [status], set: {attempts: {formula: most + 1}}, budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: requeue: the formula of attempts uses most, which is not in guard"),
    # SQL that would leave its place
    (without("attempts", "attempts: {expression: \"1; DROP TABLE jobs\"}"), f"jobs.yaml:5: attempts.expression: {SQL}"),
    (without("attempts", "attempts: {expression: \"1) FROM jobs; --\"}"),
     "jobs.yaml:5: attempts.expression: a ) closes what was not opened here"),
    (without("attempts", "attempts: {expression: \"(1\"}"), "jobs.yaml:5: attempts.expression: a ( is not closed"),
    (without("attempts", "attempts: {expression: \"1 -- the rest\"}"),
     "jobs.yaml:5: attempts.expression: comments are not used in SQL here"),
    (without("attempts", "attempts: {expression: \"1 /* x */\"}"),
     "jobs.yaml:5: attempts.expression: comments are not used in SQL here"),
    (without("attempts", "attempts: {expression: \"'open\"}"), "jobs.yaml:5: attempts.expression: a quote is not closed"),
    (without("attempts", "attempts: {expression: \"$$x$$\"}"),
     "jobs.yaml:5: attempts.expression: dollar quotes are not used in SQL here"),
    (without("attempts", "attempts: {expression: \"1 + :now\"}"), "jobs.yaml:5: attempts.expression: there is no value :now here"),
    (without("attempts", "attempts: {expression: \"\"}"), "jobs.yaml:5: attempts.expression: expected SQL, got nothing"),
    (GOOD + "requeue: {guard: [status], budgets: {keep: {effect: last_try}}, statements: [\"DELETE FROM jobs; SELECT 1\"]}\n",
     f"jobs.yaml:6: requeue.statements[0]: {SQL}"),
    (GOOD + "requeue: {guard: [status], budgets: {keep: {effect: last_try}}, statements: [\"DELETE FROM jobs WHERE id = :id\"]}\n",
     "jobs.yaml:6: requeue.statements[0]: there is no value :id here; known here: :due, :key, :now"),
    (GOOD + "requeue: {guard: [status], budgets: {keep: {effect: last_try}}, statements: [\"UPDATE jobs SET run_at = :due\"]}\n",
     "jobs.yaml:6: requeue: due is used, but no column in set has it as its time, so the plan could not tell it"),
    ("", "jobs.yaml: the file is empty; start from config.example.yaml"),
    ("a: &x 1\nb: *x\n", None),
]


@pytest.mark.parametrize(("mapping", "told"), STRUCTURE)
def test_a_mapping_that_is_none(attached: Attached, mapping: str, told: str | None) -> None:
    problem = attached.problem(mapping)
    if told is None:
        assert "aliases (*name) are not used here" in problem
    else:
        assert problem == told


REQUEUE = "requeue: {{guard: [status], set: {{{set}}}, budgets: {{keep: {{effect: last_try}}}}}}\n"
AGAINST_SQLITE = [
    (without("table", "table: job"), "jobs.yaml:5: jobs.db: {wrong}: there is no table 'job'. Check url, schema and table in"
     " the config; `retriage map` lists what is there."),
    (without("table", "table: \"jobs; DROP TABLE jobs\""), "jobs.yaml:5: jobs.db: {wrong}: there is no table"
     " 'jobs; DROP TABLE jobs'. Check url, schema and table in the config; `retriage map` lists what is there."),
    (without("attempts", "attempts: attemps"), "jobs.yaml:5: jobs.db: {wrong}: attempts: table 'jobs' has no column"
     " 'attemps'. Did you mean 'attempts'?"),
    (without("error", "error: \"last_error FROM jobs --\""), "jobs.yaml:5: jobs.db: {wrong}: error: table 'jobs' has no"
     " column 'last_error FROM jobs --'. Did you mean 'last_error'?"),
    (without("key", "key: status"), "jobs.yaml:5: jobs.db: {wrong}: key: status may be the same in two rows."
     " Unique here: id; number, tenant."),
    (without("key", "key: [tenant]"), "jobs.yaml:5: jobs.db: {wrong}: key: tenant may be the same in two rows."
     " Unique here: id; number, tenant."),
    (without("key", "key: [number, tenant]"),
     "jobs.yaml:5: jobs.db: {wrong}: key: 'number' may be NULL, so it cannot be a key"),
    (without("attempts", "attempts: {expression: job.attemps + 1}"), "jobs.yaml:5: jobs.db: {wrong}: attempts: the expression"
     " does not work here: no such column: job.attemps"),
    (without("attempts", "attempts: {expression: \"(SELECT count(*) FROM {gone})\"}"),
     "jobs.yaml:5: jobs.db: {wrong}: attempts: there is no table 'gone'"),
    (GOOD + "joins: {note: {table: notes, match: {job_id: id}}}\n", "jobs.yaml:6: jobs.db: {wrong}: joins.note.match: 'notes'"
     " may have several rows for one of ours. A join needs a unique index on what it is matched by; past attempts belong"
     " under history."),
    (GOOD + "joins: {note: {table: nots, match: {job_id: id}}}\n",
     "jobs.yaml:6: jobs.db: {wrong}: joins.note.table: there is no table 'nots'"),
    (GOOD + "joins: {note: {table: notes, match: {job: id}}}\n", "jobs.yaml:6: jobs.db: {wrong}: joins.note.match: table"
     " 'notes' has no column 'job'. Did you mean 'job_id'?"),
    (GOOD + REQUEUE.format(set="state: queued"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.state: table 'jobs' has no"
     " column 'state'. Did you mean 'status'?"),
    (GOOD + REQUEUE.format(set="size: 3"),
     "jobs.yaml:6: jobs.db: {wrong}: requeue.set.size: 'size' is generated by the database and cannot be set"),
    (GOOD + "requeue: {guard: [last_error], set: {status: queued}, budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:6: jobs.db: {wrong}: requeue.guard.0: 'last_error' would put an error text on record. Name a part of it with"
     " read and write, which say what is compared and how it is set."),
    (LETTERS + "requeue: {guard: [body], set: {status: a}, budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: jobs.db: {wrong}: requeue.guard.0: 'body' would put a payload on record. Name a part of it with"
     " read and write, which say what is compared and how it is set."),
    (LETTERS + "requeue: {guard: [enclosed], set: {status: a}, budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: jobs.db: {wrong}: requeue.guard.0: 'enclosed' would put a payload on record. Name a part of it with"
     " read and write, which say what is compared and how it is set."),
    (LETTERS + "requeue: {guard: [seal], set: {status: a}, budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: jobs.db: {wrong}: requeue.guard.0: 'seal' would put a payload on record. Name a part of it with"
     " read and write, which say what is compared and how it is set."),
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
    (GOOD + REQUEUE.format(set="id: null"), "jobs.yaml:6: jobs.db: {wrong}: requeue.set.id: the column may not be NULL"),
    (GOOD + "requeue: {guard: [status], budgets: {keep: {effect: last_try}}, function: {name: again}}\n",
     "jobs.yaml:6: jobs.db: {wrong}: requeue.function: SQLite has no stored functions"),
    (without("status", 'status: {column: number, ready: [1], failed: ["2"], done: [2]}'), "jobs.yaml:5: jobs.db: {wrong}:"
     " status: '2' and 2 are one value of a column of type INTEGER. Keep one of them."),
    (without("status", 'status: {column: number, failed: [1], done: ["+1"]}'), "jobs.yaml:5: jobs.db: {wrong}:"
     " status: 1 and '+1' are one value of a column of type INTEGER. Keep one of them."),
    (without("status", 'status: {column: status, ready: [2, "2"], failed: [failed]}'), "jobs.yaml:5: jobs.db: {wrong}:"
     " status: 2 and '2' are one value of a column of type TEXT. Keep one of them."),
    (GOOD + "time_zone: Mars/Olympus\n", "jobs.yaml:6: The configuration is not usable: the time zone 'Mars/Olympus' is not"
     " known here. Set time_zone to a name as Europe/Berlin."),
]
WRONG = "The backend's tables are not what this plugin expects"


@pytest.mark.parametrize(("mapping", "told"), AGAINST_SQLITE)
def test_a_mapping_the_file_does_not_fit(attached: Attached, mapping: str, told: str) -> None:
    assert attached.problem(mapping) == told.format(wrong=WRONG)


POSTGRES = """
CREATE TYPE mood AS ENUM ('new', 'bad', 'good');
CREATE TABLE jobs (
    id int PRIMARY KEY, other int UNIQUE, mood mood, status text, done boolean, attempts text, tries numeric, run_at text,
    made bigint, at timestamptz, body jsonb, shape point, size int GENERATED ALWAYS AS (length(status)) STORED
);
"""
PG = "table: jobs\nkey: id\nstatus: {column: status, ready: [a], failed: [b]}\n"
AGAINST_POSTGRES = [
    (PG + "attempts: attempts\n", "jobs.yaml:4: {place}: {wrong}: attempts: is text, not a whole number"),
    (PG + "attempts: tries\n", "jobs.yaml:4: {place}: {wrong}: attempts: is numeric, not a whole number"),
    (PG + "next_run: run_at\n", "jobs.yaml:4: {place}: {wrong}: next_run: is text, which is not a time"),
    (PG + "next_run: made\n", "jobs.yaml:4: {place}: {wrong}: next_run: is bigint, which is not a time; say `times: epoch` or"
     " `times: epoch_ms` if it counts from 1970"),
    (PG + "next_run: at\ntimes: epoch\n", "jobs.yaml:4: {place}: {wrong}: next_run: is timestamp with time zone, not a number of"
     " seconds: leave out `times`"),
    (PG + "error: {column: body, as: jsonb_array}\n", "jobs.yaml:4: {place}: {wrong}: error: is jsonb, not jsonb[]"),
    (PG + "error: {column: made, as: json}\n", "jobs.yaml:4: {place}: {wrong}: error: is bigint, which holds no JSON"),
    ("table: jobs\nkey: other\nstatus: {column: status, ready: [a]}\n",
     "jobs.yaml:2: {place}: {wrong}: key: 'other' may be NULL, so it cannot be a key"),
    ("table: jobs\nkey: shape\nstatus: {column: status, ready: [a]}\n",
     "jobs.yaml:2: {place}: {wrong}: key: 'shape' is point; a key is a number, a uuid or text"),
    ("table: jobs\nkey: id\nstatus: {column: mood, ready: [neu]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: 'neu' is no value of mood. It has new, bad, good."),
    ("table: jobs\nkey: id\nstatus: {column: done, done: [\"yes\"]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: 'yes' does not fit a column of type boolean"),
    ("table: jobs\nkey: id\nstatus: {column: status, ready: [1]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: 1 does not fit a column of type text"),
    ("table: jobs\nkey: id\nstatus: {column: tries, failed: [\"2\"], done: [2]}\n",
     "jobs.yaml:3: {place}: {wrong}: status: '2' and 2 are one value of a column of type numeric. Keep one of them."),
    ("table: jobs\nkey: id\nstatus:\n  cases:\n    - {condition: done, when: job.id + 1}\n",
     "jobs.yaml:5: {place}: {wrong}: status.cases.0.when: is integer, not true or false"),
    ("schema: elsewhere\n" + PG, "jobs.yaml:2: {place}: {wrong}: there is no table 'elsewhere.jobs'. Check url, schema and table"
     " in the config; `retriage map` lists what is there."),
    (PG + "requeue: {guard: [status], budgets: {keep: {effect: plus_one}}, function: {name: again, arguments: [key]}}\n",
     "jobs.yaml:4: {place}: {wrong}: requeue.function.name: there is no function 'again'"),
    (PG + REQUEUE.format(set="done: 1"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.done: 1 does not fit a column of type boolean"),
    (PG + REQUEUE.format(set="made: true"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.made: True does not fit a column of type bigint"),
    (PG + REQUEUE.format(set="mood: neu"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.mood: 'neu' is no value of mood. It has new, bad, good."),
    (PG + REQUEUE.format(set="made: {time: due}"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.made: is bigint, which is not a time; say `times: epoch` or"
     " `times: epoch_ms` if it counts from 1970"),
    (PG + "requeue: {guard: [status, body], budgets: {keep: {effect: last_try}}}\n",
     "jobs.yaml:4: {place}: {wrong}: requeue.guard.1: 'body' would put a payload on record. Name a part of it with"
     " read and write, which say what is compared and how it is set."),
    (PG + REQUEUE.format(set="size: 3"),
     "jobs.yaml:4: {place}: {wrong}: requeue.set.size: 'size' is generated by the database and cannot be set"),
]


def test_a_text_and_a_number_are_two_values_where_a_column_holds_both(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "both.db")) as connection:
        connection.executescript("CREATE TABLE both (id INTEGER PRIMARY KEY, status); INSERT INTO both VALUES (1, 2), (2, '2')")
    mapping = 'table: both\nkey: id\nstatus: {column: status, failed: ["2"], done: [2]}\n'
    with closing(Attached(tmp_path, f"sqlite:///{tmp_path}/both.db").open(mapping)) as opened:
        found = {item.key.id: item.condition for item in opened.page(PageRequest(EVERYTHING, opened.now())).items}
    assert found == {"1": Condition.DONE, "2": Condition.FAILED}


def test_a_mapping_the_database_does_not_fit(tmp_path: Path) -> None:
    """One server, many mappings."""
    with in_postgres(tmp_path, POSTGRES) as attached:
        for mapping, told in AGAINST_POSTGRES:
            place = attached.open(PG).database.place
            assert attached.problem(mapping) == told.format(wrong=WRONG, place=place)


# --- names that are odd but right -----------------------------------------------------------------------------

ODD = {
    "a table that tries to be SQL": "table: \"Robert'); DROP TABLE jobs;--\"\nkey: id\nstatus: {column: status, ready: [a]}\n",
    "quotes, spaces, percents and letters of elsewhere": (
        'table: "sel\\"ect ünï %s"\nkey: from\nstatus: {column: where, ready: [new], failed: [bad]}\ntype: a.b\n'
        'error: "%(x)s ?"\nattempts: "größe:x"\nreferences: [a.b]\n'
        'requeue: {guard: [where, "größe:x", a.b], set: {where: new}, budgets: {keep: {effect: last_try}}}\n'
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
def test_a_row_behind_odd_names_is_listed_and_handed_back(attached: Attached, tmp_path: Path, kind: str) -> None:
    from tests.plugins.postgres_analyses.operating import operating

    mapping = ODD["quotes, spaces, percents and letters of elsewhere"]
    if kind == "sqlite":
        with operating(attached.open(mapping), tmp_path) as ann:
            _handed_back(ann)
        return
    with in_postgres(tmp_path, ODD_POSTGRES) as there, operating(there.open("schema: sch.ema\n" + mapping), tmp_path) as ann:
        _handed_back(ann)


def _handed_back(ann) -> None:  # type: ignore[no-untyped-def]
    key = ann.key("1")
    item = ann.backend.items([key], ann.backend.now())[key]
    assert (item.type, item.error, item.attempts, item.condition.value) == ("kind", "it is :x ? %s", 2, "failed")
    assert ann.outcomes(ann.requeue("1")) == {("changed", ""): 1}
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
    with pytest.raises(ConfigFault, match="others can write to it"):
        open_one(backend, read_only=True, deadline=timedelta(seconds=5))


def test_a_mapping_may_be_written_out_and_its_lines_are_the_configs(attached: Attached) -> None:
    indented = "".join(f"      {line}\n" for line in without("attempts", "attempts: attemps").splitlines())
    place = attached.mapping.parent / "jobs.db"
    attached.config.write_text(f"backends:\n  jobs:\n    plugin: sql_table\n    url: sqlite:///{place}\n    mapping:\n{indented}")
    attached.config.chmod(0o600)
    (backend,) = load(attached.config).backends
    opened = open_one(backend, read_only=True, deadline=timedelta(seconds=5))
    with pytest.raises(WrongSchema) as told:
        opened.page(PageRequest(EVERYTHING, opened.now()))
    opened.close()
    assert str(told.value).startswith(f"{attached.config}:10: {place}: ")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("preset: rivr", "there is no preset 'rivr'. There are delayed_job, good_job, graphile_worker, oban, pg_boss,"
         " procrastinate, que, river, solid_queue."),
        ("", "give a preset or a mapping, not both and not neither"),
        ("preset: river, mapping: jobs.yaml", "give a preset or a mapping, not both and not neither"),
        ("mapping: nowhere.yaml", "there is no such file"),
    ],
)
def test_where_a_mapping_comes_from(attached: Attached, options: str, told: str) -> None:
    attached.open(GOOD).close()
    attached.config.write_text(f'backends:\n  jobs: {{plugin: sql_table, url: "sqlite:////tmp/x.db"{options and ", " + options}}}\n')
    (backend,) = load(attached.config).backends
    with pytest.raises(ConfigFault) as found:
        open_one(backend, read_only=True, deadline=timedelta(seconds=5))
    assert told in str(found.value)


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
