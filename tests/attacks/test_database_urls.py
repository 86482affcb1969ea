"""Promise: a mistake in a URL is a mistake in the config with its line, and libpq's form for several hosts works."""

from __future__ import annotations

import json
import tempfile
from contextlib import closing
from datetime import timedelta

import pytest
import sqlalchemy as sa

from console.core.faults import ConfigFault
from console.sql.open_database import open_database
from console.sql.postgres import PostgresDatabase
from tests.cli.place import Place, failed
from tests.plugins.postgres_analyses.server import database
from tests.trail.world import carried, trail_at

BAD = [
    ("postgresql://u@host:abc/db", "port"), ("postgresql://u@host:/db", "port"), ("postgresql://u@host:99999/db", "port"),
    ("postgresql://u@host:-1/db", "port"), ("postgresql://u@h1:5432,h2:x/db", "port"), ("postgresql://u@[::1/db", "bracket"),
    ("postgresql://u@::1]/db", "port"), ("postgresql://u@h1,[::1:5432/db", "bracket"), ("postgresql://u:%40[@[/db", "bracket"),
    ("mysql://u@h1:3306,h2:3306/db", "several hosts"), ("mariadb://u@h1,h2/db", "several hosts"), ("mariadb://u@host:abc/db", "port"),
    ("redis://h1:6379,h2:6379/0", "several hosts"), ("rediss://u@h1,[::1]:6379/0", "several hosts"),
    ("postgresql://u@/db?host=h&port=abc", "port"), ("postgresql://u@/db?host=h1,h2&port=5432%2Cx", "port"),
    ("postgresql://u@host:²/db", "port"), (f"postgresql://u@host:{'9' * 5000}/db", "port"),
]


@pytest.mark.parametrize(("url", "words"), BAD)
def test_a_mistake_in_a_url_names_its_line(place: Place, url: str, words: str) -> None:
    place.queue("jobs", failed("a"))
    place.sections["other"] = f'  other:\n    plugin: postgres_analyses\n    url: "{url}"\n'
    for arguments in (("list",), ("check",)):
        done = place.run(*arguments)
        assert done.code == 2
        assert words in done.out + done.err
        assert f"{place.config}:7" in done.out + done.err, "the line of the url"
    with pytest.raises(ConfigFault, match=words):
        open_database(url, read_only=True, deadline=timedelta(seconds=1))


def test_a_mistake_in_the_url_of_the_trail(place: Place) -> None:
    place.queue("jobs", failed("a"))
    place.console = '  trail: "postgresql://u@h1:5432,h2:x/db"\n'
    done = place.run("trail", "list")
    assert done.code == 2
    assert f"{place.config}:3" in done.err


ODD = [
    ("postgres_analyses", "postgresql://h/db?host=a,b&port=1", 2), ("postgres_analyses", "postgresql://h\u2028x/db", 4),
    ("postgres_analyses", f"postgresql://{'h' * 300}/db", 4), ("postgres_analyses", "postgresql://h/db?plugin=foo", 2),
    ("sql_table, preset: procrastinate", "postgresql://h/db?options=-c%20x&host=a,b&port=1,2,3", 2),
    ("sql_table, preset: solid_queue_mysql", "mysql://h/db?connect_timeout=x", 2), ("sql_table, preset: solid_queue_mysql", "mysql://h/db?options=x", 4),
    ("rq", "redis://h/0?charset=utf8", 2), ("sidekiq", "redis://h/0?no_such_option=1", 2), ("bullmq", "unix:///tmp/s?host=h", 2),
]


@pytest.mark.parametrize(("plugin", "url", "code"), ODD)
def test_an_option_that_the_driver_refuses_ends_nothing_else(place: Place, plugin: str, url: str, code: int) -> None:
    place.queue("jobs", failed("a"))
    place.sections["other"] = f"  other: {{plugin: {plugin}, url: {json.dumps(url)}}}\n"
    done = place.run("list")
    assert (done.code, '"key": "jobs/a"' in done.out) == (2 if code == 2 else 1, True), done.err
    assert "other: " in done.err
    assert "url" in done.err.lower()
    del place.sections["jobs"]
    assert place.run("list").code == code
    done = place.run("attach", url)
    assert (done.code, "nternal error" in done.err) != (1, True), done.err


def test_an_option_that_the_driver_refuses_in_the_url_of_the_trail(place: Place) -> None:
    for url in ("postgresql://h/db?host=a,b&port=1", "postgresql://h\u2028x/db"):
        place.console = f"  trail: {json.dumps(url)}\n"
        done = place.run("trail", "verify")
        assert done.code in (2, 4), done.err
        assert "url" in done.err


def test_an_address_is_shown_as_one_writes_it() -> None:
    url = "postgresql://u:secret@[::1]:5432,[fe80::2],h:5433/db"
    with closing(PostgresDatabase(url)) as opened:
        assert opened.place == "postgresql://u@[::1]:5432,[fe80::2],h:5433/db"


def test_the_second_host_is_used_when_the_first_does_not_answer() -> None:
    with database("CREATE TABLE t (id int)") as url, tempfile.TemporaryDirectory(dir="/tmp") as nobody:
        home = str(sa.make_url(url).query["host"])
        quoted = [folder.replace("/", "%2F") for folder in (nobody, home)]
        name = sa.make_url(url).database
        several = f"postgresql://postgres@{quoted[0]}:5432,{quoted[1]}:5432/{name}"
        with closing(PostgresDatabase(several)) as opened:
            assert opened.fetch("SELECT count(*) FROM t", ()) == [(0,)]
            assert "5432," in opened.place
        with trail_at(several) as trail:
            carried(trail)
            assert trail.verify().ok
