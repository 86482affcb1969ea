"""`retriage attach`: real schemas are recognised with their counts, and the config is changed only where that is safe."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from console.__main__ import main
from console.attach import Attachable, add_to_config, section, with_section
from plugins.postgres_analyses.schema import ddl as analyses_ddl
from plugins.sqlite_queue.schema import ASYNC_TASKS_DDL, TASKS_DDL
from plugins.workflow_steps.schema import ddl as steps_ddl
from tests import mariadb
from tests.cli.place import CONTROLS, Done, Place, failed
from tests.plugins.file_queue import folders
from tests.plugins.postgres_analyses.server import database
from tests.plugins.sql_table.systems import SYSTEMS
from tests.plugins.sql_table.world import Queue
from tests.redis_store import running_server

USAGE, NOTHING = 2, 1
OWN = {"analyses": analyses_ddl, "steps": steps_ddl}
FILES = {"analysis-queue": ASYNC_TASKS_DDL, "tasks": TASKS_DDL}
SCHEMAS = (*SYSTEMS, *OWN, *FILES, "task-files")
"""The real schemas: of ten queues, of which some come for several databases, and of the systems with a plugin."""


class Here:
    """A home without a config."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.config = folder / "new" / "config.yaml"
        self._capsys = capsys

    def run(self, *arguments: str) -> Done:
        code = main(["--config", str(self.config), *arguments])
        out, err = self._capsys.readouterr()
        assert not CONTROLS.search(out + err)
        return Done(code, out, err)


@pytest.fixture
def here(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Here:
    return Here(tmp_path, capsys)


@contextmanager
def schema(name: str, folder: Path) -> Iterator[str]:
    """The URL or path of a system with this schema."""
    if name in SYSTEMS:
        with SYSTEMS[name].queue() as queue:
            yield queue.url
    elif name in OWN:
        with database(OWN[name]()) as url:
            yield url
    elif name == "task-files":
        base = folders.make(folder / "files")
        folders.write_task(base, "a", "FAILED", suffix="done", attempts=3)
        yield str(base)
    else:
        with closing(sqlite3.connect(folder / "queue.db")) as connection:
            connection.executescript(FILES[name])
        yield str(folder / "queue.db")


# --- what is found ------------------------------------------------------------------------------------------------


def test_there_are_fifteen_real_schemas() -> None:
    assert len(SCHEMAS) >= 15


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_real_schema_is_recognised_attached_and_read(here: Here, tmp_path: Path, name: str) -> None:
    with schema(name, tmp_path) as url:
        shown = here.run("attach", url)
        assert shown.code == 0, shown.err
        assert not here.config.exists()
        assert "Nothing was written." in shown.err
        (found,) = yaml.safe_load(shown.out)["backends"].values()
        assert found.get("preset", found["plugin"]) in (name, *{"sqlite_queue", "postgres_analyses", "workflow_steps", "file_queue"})
        assert "mapping" not in found
        assert here.run("attach", url, "--yes").code == 0
        assert here.config.stat().st_mode & 0o777 == 0o600
        assert yaml.safe_load(here.config.read_text()) == yaml.safe_load(shown.out)
        assert "already in the config" in here.run("attach", url).err
        assert here.run("list").code == 0
        checked = json.loads(here.run("check", "--format", "json").out)
        assert not [finding for finding in checked if finding["severity"] == "error"], checked


def test_the_counts_of_what_needs_attention_are_shown(here: Here, place: Place) -> None:
    path = place.queue("q", failed("a"), failed("b"), failed("c", status="PENDING", attempts=1))
    shown = here.run("attach", str(path))
    assert "analysis-queue: analysis queue, table async_tasks. 1 retrying, 2 terminal." in shown.err.splitlines()


def test_redis_is_asked_which_libraries_use_it(here: Here) -> None:
    with running_server() as server:
        import redis

        assert here.run("attach", server.url).code == NOTHING
        client = redis.Redis.from_url(server.url)
        client.sadd("rq:queues", "rq:queue:default")
        client.hset("bull:mail:meta", mapping={"version": "bullmq:5"})
        client.set("stat:processed", 7)
        client.close()
        found = yaml.safe_load(here.run("attach", server.url).out)["backends"]
        assert {name: one["plugin"] for name, one in found.items()} == {"bullmq": "bullmq", "rq": "rq", "sidekiq": "sidekiq"}


# --- what is not recognised -----------------------------------------------------------------------------------------

GUESS = "CREATE TABLE outbox (id integer PRIMARY KEY, state text NOT NULL DEFAULT 'queued', tries integer, last_error text)"


def sqlite(folder: Path, ddl: str) -> str:
    with closing(sqlite3.connect(folder / "app.db")) as connection:
        connection.executescript(ddl)
    return str(folder / "app.db")


def test_a_table_that_only_looks_like_a_queue_is_attached_for_reading(here: Here, tmp_path: Path) -> None:
    rows = "INSERT INTO outbox VALUES (1, 'queued', 0, NULL), (2, 'failed', 3, 'boom')"
    shown = here.run("attach", sqlite(tmp_path, f"{GUESS};{rows}"), "--yes")
    assert "outbox: table outbox. 1 failed." in shown.err
    assert "attached for reading" in shown.err
    (found,) = yaml.safe_load(here.config.read_text())["backends"].values()
    assert "requeue" not in found["mapping"]
    assert here.run("list").out.count('"outbox/2"') == 1
    plan = json.loads(here.run("plan", "--all").out)
    assert plan["changes"] == 0


@pytest.mark.parametrize("ddl", [
    "CREATE TABLE users (id integer PRIMARY KEY, name text, created_at text)",
    "CREATE TABLE job_results (id integer PRIMARY KEY, status text, error text, attempts integer)",
    "CREATE TABLE sent (id integer PRIMARY KEY, status text, attempts integer, error text);"
    "INSERT INTO sent VALUES (1, 'sent', 1, NULL)",
    "",
], ids=["users", "results", "sent", "empty"])
def test_what_is_no_queue_is_not_offered(here: Here, tmp_path: Path, ddl: str) -> None:
    shown = here.run("attach", sqlite(tmp_path, ddl))
    assert (shown.code, shown.out) == (NOTHING, "")
    assert "No queue was found there." in shown.err


@pytest.mark.parametrize(("place_", "message"), [
    ("postgresql://ann:canary@db/app", "A password on the command line"),
    ("mysql://ann:canary@db/app", "A password on the command line"),
    ("redis://:canary@cache/0", "A password on the command line"),
    ("redis://:${CANARY:-canary}@cache/0", "A password on the command line"),
    ("redis://:${CANARY}@cache/0", "${CANARY} is not set or empty."),
    ("/nowhere/at/all", "There is no file or folder"),
    ("amqp://cache", "No plugin reads amqp:// URLs. These are known: mariadb://,"),
])
def test_refusals(here: Here, place_: str, message: str) -> None:
    shown = here.run("attach", place_)
    assert shown.code == USAGE
    assert message in shown.err
    assert "canary" not in shown.err + shown.out


def test_a_server_that_is_not_there_is_named_once(here: Here) -> None:
    shown = here.run("attach", "postgresql://127.0.0.1:1/app")
    assert shown.code == NOTHING
    assert shown.err.count("Check the url, and that the server runs.") == 1
    assert "No queue was found" not in shown.err


@pytest.mark.parametrize(("url", "module", "said"), [
    ("postgresql://127.0.0.1:1/app", "postgres", "The PostgreSQL driver is missing. Install retriage[postgres]."),
    ("mysql://127.0.0.1:1/app", "mysql", "The MySQL driver is missing. Install retriage[mysql]."),
])
def test_a_driver_that_is_not_installed_is_named_once(
    here: Here, monkeypatch: pytest.MonkeyPatch, url: str, module: str, said: str
) -> None:
    monkeypatch.delitem(sys.modules, f"console.sql.{module}", raising=False)
    monkeypatch.setitem(sys.modules, {"postgres": "psycopg", "mysql": "pymysql"}[module], None)
    for command in ("attach", "map"):
        assert here.run(command, url) == Done(USAGE, "", f"retriage: {said}\n")


def test_the_password_of_a_redis_comes_from_a_variable(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    import redis

    with running_server() as server, redis.Redis.from_url(server.url) as client:
        client.sadd("rq:queues", "rq:queue:default")
        client.config_set("requirepass", "canary")
        url = server.url.replace("://", "://:${PASSWORD}@")
        for given in (server.url, url):
            monkeypatch.setenv("PASSWORD", "wrong")
            refused = here.run("attach", given)
            assert (refused.code, refused.err.count("\n")) == (1, 1)
            assert "the server refuses this user" in refused.err
        monkeypatch.setenv("PASSWORD", "canary")
        shown = here.run("attach", url, "--yes")
        assert yaml.safe_load(here.config.read_text())["backends"] == {"rq": {"plugin": "rq", "url": url}}
        assert "canary" not in shown.out + shown.err + here.config.read_text()
        assert "already in the config as rq" in here.run("attach", url).err
        assert here.run("list").code == 0


def test_the_queues_of_other_databases_of_a_mysql_server_are_not_offered(here: Here) -> None:
    with SYSTEMS["delayed_job_mysql"].queue(), mariadb.database() as empty:
        shown = here.run("attach", empty)
        assert (shown.code, shown.out) == (NOTHING, "")
        assert "No queue was found there." in shown.err


@pytest.fixture
def role() -> Iterator[tuple[Queue, str]]:
    """River, with a discarded job, and a URL of a role that may not read its tables."""
    with SYSTEMS["river"].queue() as queue:
        name = f"reader_{sa.make_url(queue.url).database}"
        queue.run(f"CREATE ROLE {name} LOGIN", [])
        queue.run("INSERT INTO river_job (state, attempt, max_attempts, args, kind, finalized_at)"
                  " VALUES ('discarded', 25, 25, '{}', 'mail', now())", [])
        try:
            yield queue, sa.make_url(queue.url).set(username=name).render_as_string(hide_password=False)
        finally:
            queue.run(f"DROP OWNED BY {name}", [])
            queue.run(f"DROP ROLE {name}", [])


def test_a_role_that_may_not_read_the_queue_is_told_so(here: Here, role: tuple[Queue, str]) -> None:
    shown = here.run("attach", role[1])
    assert (shown.code, shown.err.count("\n")) == (1, 1)
    assert "this role may not read river_job. Grant it SELECT" in shown.err


def test_a_queue_that_cannot_be_counted_is_attached_with_the_reason(here: Here, role: tuple[Queue, str]) -> None:
    queue, url = role
    name = sa.make_url(url).username
    queue.run(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}", [])
    queue.run("ALTER TABLE river_job ENABLE ROW LEVEL SECURITY", [])
    shown = here.run("attach", url, "--yes")
    assert shown.code == 0
    assert "river: River (Go), table river_job. What needs attention could not be counted." in shown.err
    assert f"role {name} sees no row of river_job." in shown.err


# --- the config -----------------------------------------------------------------------------------------------------

NEW = Attachable("jobs", "sql_table", "River", {"preset": "river", "url": "postgresql://db/app"}, {})
BLOCK = "console:\n  refresh: 5s  # mine\nbackends:\n  # the first one\n  old: {plugin: file_queue, path: /srv/q}\n"


@pytest.mark.parametrize("config", [
    "", "# only a comment\n", BLOCK, BLOCK.rstrip("\n"), "console: {refresh: 5s}\n",
    "backends:\n  old:\n    plugin: file_queue\n    path: /srv/q\n\n",
])
def test_a_section_is_appended_and_nothing_else_changes(config: str) -> None:
    new = with_section(config, section([NEW]))
    assert new is not None
    assert new.startswith(config)
    before, after = yaml.safe_load(config) or {}, yaml.safe_load(new)
    assert after["backends"].pop("jobs") == {"plugin": "sql_table", **NEW.options}
    assert after["backends"] == before.get("backends", {})


@pytest.mark.parametrize("config", [
    "backends: {old: {plugin: file_queue, path: /srv/q}}\n",
    "backends:\n  old: {plugin: file_queue, path: /srv/q}\nconsole:\n  refresh: 5s\n",
    "backends:\n    old: {plugin: file_queue, path: /srv/q}\n",
    "backends:\n  jobs: {plugin: file_queue, path: /srv/q}\n",
    "backends:\n", "backends: [", "- a list\n", "%YAML 1.1\n---\nbackends: {}\n...\n",
])
def test_where_appending_is_not_safe_nothing_is_written(tmp_path: Path, config: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(config)
    assert with_section(config, section([NEW])) is None
    assert add_to_config(path, [NEW]) is False
    assert path.read_text() == config


def test_a_config_that_cannot_take_it_is_left_and_the_lines_are_printed(here: Here, place: Place) -> None:
    path = place.queue("q", failed("a"))
    here.config.parent.mkdir()
    here.config.write_text("backends: {files: {plugin: file_queue, path: /srv/q}}\n")
    here.config.chmod(0o600)
    shown = here.run("attach", str(path), "--yes")
    assert shown.code == NOTHING
    assert "Add these lines below `backends:` yourself." in shown.err
    assert "analysis-queue:" in shown.out
    assert "analysis-queue" not in here.config.read_text()


def test_the_mode_and_the_link_of_a_config_stay(tmp_path: Path) -> None:
    real, link = tmp_path / "real.yaml", tmp_path / "config.yaml"
    real.write_text(BLOCK)
    real.chmod(0o640)
    link.symlink_to(real)
    assert add_to_config(link, [NEW])
    assert link.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.read_text() == BLOCK + section([NEW])


def test_names_that_are_taken_get_a_number(here: Here, place: Place, tmp_path: Path) -> None:
    first, second = place.queue("one", failed("a")), place.queue("two", failed("b"))
    assert here.run("attach", str(first), "--yes").code == 0
    assert here.run("attach", str(second), "--yes").code == 0
    assert list(yaml.safe_load(here.config.read_text())["backends"]) == ["analysis-queue", "analysis-queue-2"]


def test_read_only_writes_nothing(here: Here, place: Place) -> None:
    path = place.queue("q", failed("a"))
    shown = here.run("--read-only", "attach", str(path), "--yes")
    assert "Read-only: nothing was written." in shown.err
    assert not here.config.exists()


def test_a_config_that_is_read_only_is_not_written(here: Here, place: Place) -> None:
    path = place.queue("q", failed("a"))
    here.config.parent.mkdir(mode=0o700)
    here.config.write_text("console: {read_only: true}\n")
    here.config.chmod(0o600)
    shown = here.run("attach", str(path), "--yes")
    assert "Read-only: nothing was written." in shown.err
    assert here.config.read_text() == "console: {read_only: true}\n"


def test_hostile_names_stay_in_their_place(here: Here, tmp_path: Path) -> None:
    odd: Any = 'evil"\n  x: {plugin: y}\n# '
    ddl = f"CREATE TABLE {json.dumps(odd)} (id integer PRIMARY KEY, status text DEFAULT 'queued', attempts int, error text)"
    url = sqlite(tmp_path, ddl.replace("\\n", "\n").replace('\\"', '""'))
    assert here.run("attach", url, "--yes").code == 0
    ((name, found),) = yaml.safe_load(here.config.read_text())["backends"].items()
    assert (name, found["plugin"], found["mapping"]["table"]) == ("evil-x-plugin-y", "sql_table", odd)
    assert here.run("list").code == 0
