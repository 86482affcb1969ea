"""`retriage map` on real databases: presets recognised, tables guessed at, and the guesses put right by hand."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
import pytest

from console.core.faults import DeadlineExceeded
from tests.cli.place import Done, Place
from tests.plugins.postgres_analyses.server import database
from tests.plugins.sql_table.systems import SYSTEMS

Run = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True)
class HomeMade:
    """A table somebody made, what is wrong with the first guess, and what it should show."""

    ddl: str
    conditions: dict[str, str]
    after: str
    """What shows that the failed item was requeued."""
    corrected: dict[str, str] = field(default_factory=dict)
    """Lines of the proposal → what they should be; an empty one is left out."""
    added: str = ""
    postgres: bool = False
    failed: str = "1"
    attempts: str = "reset"
    code: int = 0
    """1 if the proposal cannot be used as it is."""


TABLES = {
    # The usual: everything has the name one expects.
    "jobs": HomeMade(
        """CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'pending', attempts INTEGER DEFAULT 0, max_attempts INTEGER,
               run_at TEXT, last_error TEXT, job_type TEXT, created_at TEXT, updated_at TEXT);
           INSERT INTO jobs VALUES (1, 'failed', 3, 3, '2026-11-01 10:00:00', 'boom', 'mail', '2026-11-01 09:00:00', '2026-11-01 10:00:00'),
               (2, 'pending', 1, 3, '2036-11-01 10:00:00', 'slow', 'mail', '2026-11-01 09:00:00', '2026-11-01 10:00:00'),
               (3, 'done', 1, 3, NULL, NULL, 'mail', '2026-11-01 09:00:00', '2026-11-01 10:00:00')""",
        {"1": "terminal", "2": "retrying", "3": "done"},
        "SELECT status = 'pending' AND attempts = 0 AND run_at GLOB '????-??-?? ??:??:??' FROM jobs WHERE id = 1",
    ),
    # An outbox without a status column, times in milliseconds, camel case.
    "outbox": HomeMade(
        """CREATE TABLE outbox (messageId TEXT PRIMARY KEY, topic TEXT, payload TEXT, retryCount INTEGER, nextAttemptAt INTEGER,
               lastError TEXT, sentAt INTEGER, createdAt INTEGER, deadAt INTEGER);
           INSERT INTO outbox VALUES ('1', 'a', '{}', 9, 1790000000000, 'refused', NULL, 1780000000000, 1790000000000),
               ('2', 'a', '{}', 2, 2090000000000, 'refused', NULL, 1780000000000, NULL),
               ('3', 'a', '{}', 0, NULL, NULL, 1790000000000, 1780000000000, NULL), ('4', 'b', '{}', 0, NULL, NULL, NULL, 1780000000000, NULL)""",
        {"1": "terminal", "2": "retrying", "3": "done", "4": "waiting"},
        "SELECT deadAt IS NULL AND retryCount = 0 AND nextAttemptAt > 1790000000000 FROM outbox WHERE messageId = '1'",
    ),
    # Numbers for states: only a person knows their meaning.
    "deliveries": HomeMade(
        """CREATE TABLE deliveries (account text NOT NULL, seq int NOT NULL, state smallint NOT NULL, tries int NOT NULL,
               due_at timestamptz, error_message text, updated_at timestamptz NOT NULL, PRIMARY KEY (account, seq));
           INSERT INTO deliveries VALUES ('a', 1, 4, 5, now(), 'refused', now()), ('a', 2, 0, 0, now(), NULL, now()),
               ('b', 1, 0, 1, now() + interval '1 hour', 'refused', now()), ('b', 2, 3, 1, NULL, NULL, now())""",
        {"a/1": "failed", "a/2": "waiting", "b/1": "retrying", "b/2": "done"},
        "SELECT state = 0 AND tries = 0 FROM deliveries WHERE account = 'a' AND seq = 1",
        {
            "# not mapped, shown as unknown: numbers say nothing about their meaning. Map the values whose meaning you know:":
                "  ready: [0]\n  failed: [4]\n  done: [3]",
            "# requeue: {guard: [state], set: {state: 0 or 3 or 4}, attempts: {keep: {effect: last_try}}}":
                "requeue: {guard: [state], set: {state: 0}, attempts: {reset: {effect: reset, set: {tries: 0}}}}",
        }, postgres=True, failed="a/1",
    ),
    # An enum with a word of its own, JSON errors, a uuid, a schema.
    "sync.tasks": HomeMade(
        """CREATE SCHEMA sync;
           CREATE TYPE sync.task_state AS ENUM ('queued', 'working', 'ok', 'kaputt');
           CREATE TABLE sync.tasks (id uuid PRIMARY KEY, task_state sync.task_state NOT NULL, attempt_count int,
               scheduled_for timestamp, failure jsonb, started_at timestamp, kind text);
           INSERT INTO sync.tasks VALUES
               ('00000000-0000-4000-8000-000000000001', 'kaputt', 3, now(), '{"message": "no route", "code": 7}', now(), 'pull'),
               ('00000000-0000-4000-8000-000000000002', 'queued', 0, now(), NULL, NULL, 'pull')""",
        {"00000000-0000-4000-8000-000000000001": "failed", "00000000-0000-4000-8000-000000000002": "waiting"},
        "SELECT task_state = 'queued' FROM sync.tasks WHERE id = '00000000-0000-4000-8000-000000000001'",
        {"# not mapped, shown as unknown: these words are not known. Map the values whose meaning you know:": "  failed: [kaputt]"}, postgres=True,
        failed="00000000-0000-4000-8000-000000000001",
    ),
    # Words no parser likes, and booleans instead of a status.
    "order": HomeMade(
        '''CREATE TABLE "order" ("group" INTEGER PRIMARY KEY, processed BOOLEAN NOT NULL DEFAULT 0, "failures" INTEGER, "select" TEXT,
               locked_at TEXT, error TEXT, updated TEXT);
           INSERT INTO "order" VALUES (1, 0, 2, 'x', NULL, 'paper jam', '2026-11-01T10:00:00Z'), (2, 1, 0, 'x', NULL, NULL, NULL),
               (3, 0, 0, 'x', '2036-11-01T10:00:00Z', NULL, NULL), (4, 0, 0, 'x', NULL, NULL, NULL)''',
        {"1": "failed", "2": "done", "3": "running", "4": "waiting"},
        """SELECT error IS NULL AND failures = 2 AND updated GLOB '????-??-??T??:??:??Z' FROM "order" WHERE "group" = 1""",
        {"# requeue: no proposal; add what its own system writes to run an item again": ""},
        "requeue:\n  guard: [failures, updated]\n  set: {is_clear: {column: error, read: job.error IS NULL, write: 'CASE WHEN"
        " :value THEN NULL ELSE error END', value: true}, updated: {time: now}}\n  attempts: {keep: {effect: last_try}}\n",
        attempts="keep",
    ),
}


@pytest.fixture(autouse=True)
def patient(place: Place) -> None:
    place.deadline = "60s"


@pytest.fixture
def at(tmp_path: Path) -> Iterator[Callable[[HomeMade], tuple[str, Run]]]:
    with ExitStack() as stack:
        def made(table: HomeMade) -> tuple[str, Run]:
            if table.postgres:
                url = stack.enter_context(database(table.ddl))
                connection = stack.enter_context(psycopg.connect(url, autocommit=True))
                return url, lambda sql: connection.execute(sql).fetchall()
            path = tmp_path / "made.db"
            with closing(sqlite3.connect(path)) as file:
                file.executescript(table.ddl)

            def run(sql: str) -> list[tuple[Any, ...]]:
                with closing(sqlite3.connect(path)) as file:
                    return file.execute(sql).fetchall()

            return f"sqlite:///{path}", run

        yield made


def corrected(proposal: str, table: HomeMade) -> str:
    """The proposal with a few lines put right, as a person would."""
    lines = proposal.splitlines()
    for wrong, right in table.corrected.items():
        (number,) = [n for n, line in enumerate(lines) if line.partition("  #")[0].rstrip() == wrong]
        lines[number] = right
    return "\n".join(lines) + f"\n{table.added}"


def attach(place: Place, url: str, mapping: Path) -> None:
    place.sections["made"] = f'  made: {{plugin: sql_table, url: "{url}", mapping: {mapping}}}\n'


@pytest.mark.parametrize("name", TABLES)
def test_a_home_made_table_is_mapped_and_put_right_in_a_few_lines(
    place: Place, at: Callable[[HomeMade], tuple[str, Run]], name: str
) -> None:
    table = TABLES[name]
    url, run = at(table)
    mapping = place.folder / "made.yaml"
    assert place.run("map", url, "--table", name, "--output", str(mapping)).code == table.code
    proposal = mapping.read_text()
    right = corrected(proposal, table)
    changed = set(right.splitlines()) ^ set(proposal.splitlines())
    assert len(changed) < 10
    mapping.write_text(right)
    attach(place, url, mapping)
    listed = place.run("list", "--where", "condition:*", "--format", "json")
    found = {item["id"]: item["condition"] for item in json.loads(listed.out)}
    assert found == table.conditions, listed.err
    done = place.run("requeue", "--key", f"made/{table.failed}", "--attempts", table.attempts, "--reason", "fixed",
                     "--confirm", "1")
    assert done.code == 0, done.err
    assert bool(run(table.after)[0][0])
    assert place.run("trail", "verify").code == 0
    (causes,) = [json.loads(line) for line in place.run("causes", "--where", "condition:*").out.splitlines()][:1]
    assert causes["count"] >= 1


def test_the_proposal_says_why_and_shows_the_first_items(place: Place, at: Callable[[HomeMade], tuple[str, Run]]) -> None:
    url, _ = at(TABLES["jobs"])
    done = place.run("map", url, "--output", str(place.folder / "jobs.yaml"), "--format", "table")
    assert done.code == 0
    assert done.err.splitlines() == [
        "Proposed for table jobs. Each guess has its reason as a comment.", f"Written to {place.folder}/jobs.yaml."
    ]
    assert [line.split()[0] for line in done.out.splitlines()] == ["key", "mapped/3", "mapped/2", "mapped/1"]
    assert (place.folder / "jobs.yaml").stat().st_mode & 0o777 == 0o600
    text = (place.folder / "jobs.yaml").read_text()
    for line in (
        "key: id                                         # unique in this database",
        "  column: status                                # by its name",
        "  ready: [pending]                              # by its name",
        "times: datetime                                 # the times are text as SQLite's datetime() writes it",
    ):
        assert line in text.splitlines()


def test_without_an_output_file_the_yaml_is_what_stdout_gets(place: Place, at: Callable[[HomeMade], tuple[str, Run]]) -> None:
    url, _ = at(TABLES["jobs"])
    done = place.run("map", url)
    assert done.out.startswith("# A proposed mapping for jobs. Read and correct it,")
    assert "mapped/1" not in done.out


@pytest.mark.parametrize("preset", SYSTEMS)
def test_a_preset_is_recognised_by_its_tables(place: Place, preset: str) -> None:
    system = SYSTEMS[preset]
    with system.queue() as queue:
        done = place.run("map", queue.url)
        assert done.code == 0, done.err
        name = preset.replace("_", "-")
        section = f'  {name}: {{plugin: sql_table, preset: {preset}, url: "{queue.url}"}}'
        assert done.out.splitlines() == ["# For the config file: this database fits a preset.", "backends:", section]
        place.sections["x"] = section + "\n"
        checked = place.run("check", "--format", "json")
        assert not [f for f in json.loads(checked.out) if f["severity"] == "error"], checked.out


def test_a_preset_is_found_in_another_schema_and_a_table_that_only_shares_its_name_is_not(place: Place) -> None:
    moved = SYSTEMS["river"].ddl.replace("river_job", "queue.river_job").replace("queue.river_job_", "river_job_")
    moved = moved.replace("TABLE river_queue", "TABLE queue.river_queue")
    ddl = f"CREATE SCHEMA queue; CREATE TABLE que_jobs (id int PRIMARY KEY, x int); {moved}"
    with database(ddl) as url:
        done = place.run("map", url)
        section = f'  river: {{plugin: sql_table, preset: river, url: "{url}", schema: queue}}'
        assert done.out.splitlines()[2:] == [section]
        place.sections["x"] = section + "\n"
        assert place.run("list").code == 0


def last_line(done: Done) -> str:
    assert done.out == ""
    (line,) = done.err.splitlines()
    return line


def test_what_map_refuses(place: Place, at: Callable[[HomeMade], tuple[str, Run]]) -> None:
    url, _ = at(TABLES["jobs"])
    secret = "retriage: A password on the command line can be read by everyone on this machine."
    fix = " Write ${NAME} for it, with the URL in single quotes, and set that variable; or use a passfile (~/.pgpass, PGPASSFILE)."
    place.attach("queue")
    place.sections["files"] = "  files: {plugin: file_queue, path: /tmp/x}\n"
    for arguments, line in (
        (["postgresql://ann:canary@db/app"], secret + fix),
        (["postgresql://db/app?password=canary"], secret + fix),
        (["nothing"], "retriage: No backend named 'nothing'. Known: files, queue."),
        (["quue"], "retriage: No backend named 'quue'. Did you mean 'queue'?"),
        (["files"], "retriage: The backend 'files' has no url. `map` works for databases only."),
        ([url, "--table", "job"], "retriage: There is no table 'job'. Did you mean jobs?"),
        ([url, "--output", str(place.config)], f"retriage: {place.config} already exists."
         " Name a new file; nothing is overwritten."),
        ([url, "--format", "csv"], "retriage: --format applies to the list of items, which needs --output."
         " Add --output FILE, or leave out --format."),
        (["oracle://db/app"], "retriage: databases of type oracle are not supported. Write sqlite:///PATH,"
         " postgresql://USER@HOST/DATABASE or mysql://USER@HOST/DATABASE."),
        (["sqlite:////nowhere/x.db"], "retriage: /nowhere/x.db: Cannot connect: there is no such file. Check the"
         " path in the url."),
    ):
        done = place.run("map", *arguments)
        assert done.err.splitlines()[-1] == line
        assert done.code == (1 if "Cannot connect" in line else 2)
        assert "canary" not in done.err


def test_a_server_that_is_not_there_is_not_looked_for_in_the_config(place: Place) -> None:
    done = place.run("map", "postgresql://127.0.0.1:1/app")
    assert done.code == 1
    assert done.err.endswith(". Check the url, and that the server runs.\n")


def test_a_configured_backend_lends_its_url(place: Place) -> None:
    place.queue("bot")
    done = place.run("map", "bot")
    assert "table: async_tasks" in done.out.splitlines()


def test_the_password_of_a_configured_backend_is_shown_nowhere(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CANARY", "canary")
    flags = "CREATE TABLE flags (id int PRIMARY KEY, is_finished boolean, attempts int)"
    with database(f"{TABLES['deliveries'].ddl}; {flags}; {SYSTEMS['que'].ddl}") as url:
        given = url.replace("postgres@", "postgres:${CANARY}@")
        assert given != url
        place.sections["jobs"] = f'  jobs: {{plugin: sql_table, preset: que, url: "{given}"}}\n'
        output = place.folder / "out.yaml"
        for table in ([], ["--table", "deliveries"], ["--table", "flags"], ["--table", "que_jobs", "--output", str(output)]):
            done = place.run("map", "jobs", *table)
            assert done.code == int("flags" in table)
            assert "canary" not in done.out + done.err + (output.read_text() if output.exists() else "")


def test_a_table_that_is_no_queue_is_named(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript("CREATE TABLE people (id INTEGER PRIMARY KEY, name TEXT)")
    assert last_line(place.run("map", f"sqlite:///{path}")) == (
        "retriage: No table in this database looks like a queue. Name one with --table. Tables: people."
    )


def test_looking_changes_nothing_on_disk(place: Place, at: Callable[[HomeMade], tuple[str, Run]]) -> None:
    url, _ = at(TABLES["jobs"])
    path = Path(url.removeprefix("sqlite:///"))
    before = (path.read_bytes(), sorted(file.name for file in path.parent.iterdir()))
    assert place.run("map", url).code == 0
    after = sorted(file.name for file in path.parent.iterdir() if file.name != "config.yaml")
    assert (path.read_bytes(), after) == before


def test_a_server_that_does_not_answer_in_time_is_not_taken_for_another_system(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tables would be guessed at, although a preset fits them."""
    def slow(*_: object) -> None:
        raise DeadlineExceeded("no answer after 5s")

    with SYSTEMS["que"].queue() as queue:
        monkeypatch.setattr("plugins.sql_table.discovery.resolve", slow)
        done = place.run("map", queue.url)
        assert done.code == 1
        assert last_line(done) == "retriage: Timed out: no answer after 5s"


HOSTILE = 'x"\n# injected: true\nrequeue: {}\n\x1b]52;c;aGk=\x07'


def test_hostile_names_stay_in_their_place(place: Place, tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    name = HOSTILE.replace('"', '""')
    with closing(sqlite3.connect(path)) as file:
        file.executescript(
            f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY, status TEXT, "{name}_last_error" TEXT, attempts INT);'
        )
        file.execute(f'INSERT INTO "{name}" VALUES (1, ?, ?, 2)', [HOSTILE, HOSTILE])
        file.execute(f'INSERT INTO "{name}" VALUES (2, ?, NULL, 0)', ["done"])
        file.commit()
    mapping = place.folder / "hostile.yaml"
    done = place.run("map", f"sqlite:///{path}", "--output", str(mapping))
    assert not [line for line in mapping.read_text().splitlines() if line.startswith(("# injected", "requeue: {}"))]
    (item,) = [item for item in map(json.loads, done.out.splitlines()) if item["id"] == "1"]
    assert (item["native_status"], item["error"]) == (HOSTILE, HOSTILE)


# --- map never proposes harm ----------------------------------------------------------------------------------


def proposal_for(place: Place, tmp_path: Path, ddl: str) -> tuple[Done, list[str]]:
    path = tmp_path / "made.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(ddl)
    done = place.run("map", str(path))
    return done, [line.partition("  #")[0].rstrip() for line in done.out.splitlines()]


def test_it_takes_a_file_name(place: Place, tmp_path: Path) -> None:
    done, lines = proposal_for(place, tmp_path, TABLES["jobs"].ddl)
    assert done.code == 0
    assert "table: jobs" in lines


def test_an_unknown_word_is_never_ready(place: Place, tmp_path: Path) -> None:
    _, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT NOT NULL DEFAULT 'queued', attempts INTEGER, last_error TEXT);
        INSERT INTO jobs VALUES (1, 'queued', 0, NULL), (2, 'on_hold', 0, NULL), (3, 'approval', 0, NULL), (4, 'failed', 3, 'x')""")
    assert "  ready: [queued]" in lines
    assert "#   on_hold: 1 row" in lines
    assert "    status: queued" in lines


def test_the_target_is_the_status_of_new_rows_and_never_the_first_that_sounds_ready(place: Place, tmp_path: Path) -> None:
    _, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, attempts INTEGER, last_error TEXT);
        INSERT INTO jobs VALUES (1, 'available', 2, NULL), (2, 'scheduled', 0, NULL), (4, 'failed', 3, 'x')""")
    assert "    status: scheduled" in lines


def test_a_target_that_is_not_known_is_left_open_with_the_choices(place: Place, tmp_path: Path) -> None:
    done, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT, attempts INTEGER, last_error TEXT);
        INSERT INTO jobs VALUES (1, 'available', 2, NULL), (2, 'scheduled', 2, NULL), (4, 'failed', 3, 'x')""")
    assert done.code == 0
    assert "requeue:" not in lines
    choices = "# requeue: {guard: [status], set: {status: available or scheduled}, attempts: {keep: {effect: last_try}}}"
    assert choices in lines


def test_a_default_whose_meaning_is_not_known_is_named(place: Place, tmp_path: Path) -> None:
    """Nobody knows whether a worker takes a draft."""
    _, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'draft', attempts INTEGER, last_error TEXT);
        INSERT INTO jobs VALUES (1, 'approved', 0, NULL), (4, 'failed', 3, 'x')""")
    assert "requeue:" not in lines
    assert "# requeue: which status does its system give to new rows? draft is the column's default." in lines[-2]


@pytest.mark.parametrize(("type", "values", "what"), [
    ("TEXT", ("'alpha'", "'beta'"), "these words are not known"), ("INTEGER", ("1", "2"), "numbers say nothing about their meaning"),
])
def test_a_table_of_which_no_status_is_known_is_proposed_for_reading(
    place: Place, tmp_path: Path, type: str, values: tuple[str, str], what: str
) -> None:
    done, lines = proposal_for(place, tmp_path, f"""
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status {type}, attempts INTEGER, last_error TEXT);
        INSERT INTO jobs VALUES (1, {values[0]}, 0, NULL), (2, {values[1]}, 3, 'boom'), (3, NULL, 0, NULL)""")
    assert done.code == 0
    assert "No value of status is known, so this only reads, and shows every item as unknown." in done.err
    assert not [line for line in lines if "Not usable" in line or line.startswith(("requeue:", "discard:"))]
    at = lines.index(f"# not mapped, shown as unknown: {what}. Map the values whose meaning you know:")
    first, second = (value.strip("'") for value in values)
    assert lines[at + 1 : at + 3] == [f"#   {first}: 1 row", f"#   {second}: 1 row, 1 with last_error"]
    assert conditions(place, tmp_path) == {"1": "unknown", "2": "unknown", "3": "unknown"}
    attach(place, f"sqlite:///{tmp_path / 'made.db'}", tmp_path / "shown.yaml")
    (finding,) = [line for line in place.run("check", "--format", "jsonl").out.splitlines() if '"status"' in line]
    assert "no value of status is mapped: every item is shown as unknown" in finding
    assert place.run("list", "--where", "condition:unknown", "--sort", "attempts").out.count("\n") == 3
    assert place.run("requeue", "--key", "made/2", "--reason", "r", "--confirm", "1").code in (2, 3)
    attached = place.run("attach", str(tmp_path / "made.db"))
    assert "No queue was found there" in attached.err + attached.out


@pytest.mark.parametrize("ddl", [
    "CREATE TABLE mail_sent (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'pending', attempts INTEGER, last_error TEXT, sent_at TEXT);"
    " INSERT INTO mail_sent VALUES (1, 'failed', 1, 'x', NULL), (2, 'pending', 0, NULL, NULL)",
    "CREATE TABLE outputs (id INTEGER PRIMARY KEY, status TEXT, attempts INTEGER, error TEXT, duration INTEGER);"
    " INSERT INTO outputs VALUES (1, 'failed', 1, 'x', 3), (2, 'success', 1, NULL, 4)",
])
def test_a_table_of_results_or_sent_things_is_reported_and_not_requeued(place: Place, tmp_path: Path, ddl: str) -> None:
    path = tmp_path / "made.db"
    with closing(sqlite3.connect(path)) as file:
        file.executescript(ddl)
    done = place.run("map", str(path), "--table", ddl.split()[2])
    assert "Probably no queue" in done.err
    assert "requeue:" not in done.out.splitlines()


def test_a_proposal_that_check_would_refuse_is_not_called_usable(place: Place, tmp_path: Path) -> None:
    done, _ = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, dead_at TEXT, processed INTEGER, attempts INTEGER, error TEXT, run_at TEXT);
        INSERT INTO jobs VALUES (1, '2026-11-01T10:00:00Z', 1, 3, 'x', '2026-11-01T10:00:00Z')""")
    assert done.code == 1
    assert done.out.startswith("# Not usable yet, correct it first. ")
    assert "Read and correct it, save it" not in done.out


@pytest.mark.parametrize(("columns", "why"), [
    ("attempts_left INTEGER, max_attempts INTEGER", "attempts_left counts down"),
    ("remaining_tries INTEGER, allowed_tries INTEGER", "remaining_tries counts down"),
    ("retries INTEGER DEFAULT 3, most INTEGER", "retries of new rows is 3, so it may count down"),
])
def test_a_limit_or_a_counter_of_what_is_left_is_never_set_to_zero(
    place: Place, tmp_path: Path, columns: str, why: str
) -> None:
    done, lines = proposal_for(place, tmp_path, f"""
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'queued', {columns}, last_error TEXT);
        INSERT INTO jobs VALUES (1, 'failed', 0, 3, 'x'), (2, 'queued', 3, 3, NULL), (3, 'cancelled', 3, 3, NULL)""")
    assert done.code == 0
    assert f"# requeue: no proposal; {why}. Add what its own system writes to run an item again" in lines
    assert not [line for line in lines if line.startswith(("attempts:", "requeue:", "discard:"))]


def test_the_time_of_the_last_failure_does_not_end_an_item(place: Place, tmp_path: Path) -> None:
    _, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, last_failed_at TEXT, attempts INTEGER, error TEXT, next_run_at TEXT);
        INSERT INTO jobs VALUES (1, '2026-11-01T10:00:00Z', 1, 'x', '2036-11-01T10:00:00Z')""")
    assert not [line for line in lines if "last_failed_at" in line]


def test_a_limit_of_retries_allows_one_execution_more(place: Place, tmp_path: Path) -> None:
    _, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'queued', attempts INTEGER, max_retries INTEGER, error TEXT);
        INSERT INTO jobs VALUES (1, 'queued', 0, 3, NULL)""")
    assert 'max_attempts: {expression: "job.\\"max_retries\\" + 1"}' in lines


JOBS = "CREATE TABLE jobs (id INTEGER PRIMARY KEY, attempts INTEGER, last_error TEXT, run_at TEXT, {});"


@pytest.mark.parametrize("type", ["INTEGER", "BOOLEAN"])
def test_a_flag_that_is_not_set_is_not_done(place: Place, tmp_path: Path, type: str) -> None:
    """Otherwise every job would be shown as done, and nothing would need attention."""
    proposal_for(place, tmp_path, JOBS.format(f"done {type}") + """
        INSERT INTO jobs VALUES (1, 3, 'x', '2026-11-01T10:00:00Z', 0), (2, 1, NULL, '2026-11-01T10:00:00Z', 1),
            (3, 0, NULL, '2026-11-01T10:00:00Z', NULL)""")
    assert conditions(place, tmp_path) == {"1": "failed", "2": "done", "3": "waiting"}


@pytest.mark.parametrize("column", ["done TEXT", "is_done TEXT", "is_finished BOOLEAN", "held INTEGER"])
def test_beside_a_flag_that_is_not_known_nothing_is_ready(place: Place, tmp_path: Path, column: str) -> None:
    done, lines = proposal_for(place, tmp_path, JOBS.format(f"failed_at TEXT, {column}") + """
        INSERT INTO jobs VALUES (1, 3, 'x', '2026-11-01T10:00:00Z', '2026-11-01T10:00:00Z', '1'),
            (2, 0, NULL, '2026-11-01T10:00:00Z', NULL, '0')""")
    assert done.code == 0
    assert conditions(place, tmp_path) == {"1": "terminal", "2": "unknown"}
    todo = f"nothing is known about {column.split()[0]}. Add what its own system writes to run an item again"
    assert f"# requeue: no proposal; {todo}" in lines


def test_a_table_of_which_only_a_flag_is_not_known_says_what_to_give(place: Place, tmp_path: Path) -> None:
    done, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, is_finished BOOLEAN, attempts INTEGER, run_at TEXT)""")
    assert done.code == 1
    wanted = "mapping.status: give a column, an expression or a list of cases."
    assert lines[0] == f"# Not usable yet, correct it first. {wanted}"


@pytest.mark.parametrize(("column", "word"), [
    ("cancelled_at TEXT", "cancelled"), ("deleted_at TEXT", "deleted"), ("is_archived INTEGER", "archived"),
])
def test_an_item_that_was_cancelled_or_deleted_is_not_requeued(
    place: Place, tmp_path: Path, column: str, word: str
) -> None:
    _, lines = proposal_for(place, tmp_path, JOBS.format(f"failed_at TEXT, {column}") + """
        INSERT INTO jobs VALUES (1, 3, 'x', '2026-11-01', '2026-11-01', '1'), (2, 3, 'x', '2026-11-01', '2026-11-01', NULL)""")
    assert "requeue:" in lines
    assert conditions(place, tmp_path) == {"1": "cancelled", "2": "terminal"}
    (tmp_path / "made.db").unlink()
    _, lines = proposal_for(place, tmp_path, JOBS.format(f"status TEXT DEFAULT 'pending', {column}") + """
        INSERT INTO jobs VALUES (1, 3, 'x', '2026-11-01', 'failed', '1'), (2, 3, 'x', '2026-11-01', 'failed', NULL)""")
    assert "    status: pending" in lines, "the column's default, although no row has it"
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("\n".join(lines))
    attach(place, f"sqlite:///{tmp_path / 'made.db'}", mapping)
    planned = json.loads(place.run("plan", "--key", "made/1", "--key", "made/2", "--attempts", "reset").out)
    assert planned["skipped"] == {f"It was {word}.": 1}


def conditions(place: Place, tmp_path: Path) -> dict[str, str]:
    """What the proposal shows."""
    mapping = tmp_path / "shown.yaml"
    done = place.run("map", str(tmp_path / "made.db"), "--output", str(mapping))
    return {item["id"]: item["condition"] for item in map(json.loads, done.out.splitlines())}


def test_a_column_of_times_that_is_still_empty_is_used(place: Place, tmp_path: Path) -> None:
    _, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'queued', attempts INTEGER, next_attempt_at TEXT, updated_at TEXT);
        INSERT INTO jobs VALUES (1, 'queued', 0, NULL, '2026-11-01 10:00:00')""")
    assert "next_run: next_attempt_at" in lines
    assert "times: datetime" in lines


def test_what_a_worker_may_have_left_in_a_row_is_pointed_out(place: Place, tmp_path: Path) -> None:
    """A status alone does not make a row ready where workers take only rows that nobody has locked."""
    _, lines = proposal_for(place, tmp_path, """
        CREATE TABLE jobs (id INTEGER PRIMARY KEY, status TEXT DEFAULT 'queued', attempts INTEGER, locked_by TEXT, last_error TEXT);
        INSERT INTO jobs VALUES (1, 'queued', 0, NULL, NULL), (2, 'failed', 3, 'w1', 'x')""")
    at = lines.index("    status: queued")
    assert lines[at + 1] == "#    locked_by: null  if its workers take only rows where it is empty"
