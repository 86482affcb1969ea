"""Promise: a mistake in a URL is a mistake in the config with its line, and libpq's form for several hosts works."""

from __future__ import annotations

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
