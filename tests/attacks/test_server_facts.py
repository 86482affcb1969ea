"""Promise: a record in a PostgreSQL trail says which role wrote it, from where and when; nobody can write another's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import psycopg
import pytest

from console.core.plan import canonical
from console.trail.record import Kind, next_record, stamp
from tests.plugins.postgres_analyses.server import database
from tests.trail.world import START, YES, carried, sealed, trail_at


@pytest.fixture
def url() -> Iterator[str]:
    with database() as found:
        yield found


def test_every_record_has_the_servers_facts(url: str) -> None:
    with trail_at(url) as trail:
        carried(trail)
        trail.refuse({"why": "n\x00\ud800\\u0041 é 😀", "detail": '"server":{"session_user":"eve"}'}, START)
        for record in trail.records():
            assert record.body["server"]["session_user"] == "postgres"
            assert record.body["server"]["address"] == ""
            at = datetime.fromisoformat(record.body["server"]["at"])
            assert abs(datetime.now(UTC) - at) < timedelta(minutes=5)
        assert trail.verify().what == ""


def forged(url: str, body: str) -> None:
    """Append a record as somebody would who may insert: well made and well chained."""
    with psycopg.connect(url) as raw:
        seq, prev = raw.execute("SELECT seq, hash FROM retriage_trail.record ORDER BY seq DESC LIMIT 1").fetchone() or (0, "")
        row = list(next_record(prev, seq + 1, Kind.REFUSAL, START, {}))
        row[3] = body
        raw.execute("INSERT INTO retriage_trail.record VALUES (%s, %s, %s, %s, %s, %s)", row)


def facts(**other: object) -> dict[str, object]:
    return {"session_user": "postgres", "address": "", "at": stamp(datetime.now(UTC)), **other}


@pytest.mark.parametrize(
    "body",
    [
        lambda: "{}", lambda: canonical({"by": "ann"}), lambda: canonical({"server": None}), lambda: canonical({"server": {}}),
        lambda: canonical({"server": facts(session_user="ann")}), lambda: canonical({"server": facts(address="10.0.0.9")}),
        lambda: canonical({"server": facts(at=stamp(datetime.now(UTC) - timedelta(minutes=1)))}),
        lambda: canonical({"server": facts(at=stamp(datetime.now(UTC) + timedelta(minutes=1)))}),
        lambda: canonical({"server": facts(at=None)}),
        lambda: canonical({"nested": {"server": facts()}}), lambda: canonical({"why": '"server":' + json.dumps(facts())}),
        lambda: f'{{"server":{json.dumps(facts())},"server":{{"session_user":"ann"}}}}',
        lambda: f'{{"server":{json.dumps(facts())},"\\u0073erver":{{"session_user":"ann"}}}}',
        # other keys that became these where the trigger left out what jsonb cannot hold
        lambda: canonical({"server": facts(session_user="ann"), "server\\": facts()}),
        lambda: canonical({"server": facts(session_user="ann", **{"session_user\\": "postgres"})}),
        lambda: canonical({"server": facts(session_user="ann", **{"sessionéuser": "postgres"})}),
    ],
)
def test_a_record_with_other_facts_is_refused(url: str, body: object) -> None:
    with trail_at(url) as trail:
        carried(trail)
        with pytest.raises(psycopg.errors.RaiseException):
            forged(url, body())  # type: ignore[operator]
        assert trail.verify().what == ""


def test_a_table_of_the_same_name_does_not_mislead_the_triggers(url: str) -> None:
    with trail_at(url) as trail:
        carried(trail)
    with psycopg.connect(url) as raw:
        raw.execute("CREATE TEMP TABLE record (seq bigint)")
        raw.execute("SET search_path = pg_temp, retriage_trail")
        row = list(next_record("0" * 64, 1000, Kind.REFUSAL, START, {"server": facts()}))
        with pytest.raises(psycopg.errors.RaiseException, match="must follow"):
            raw.execute("INSERT INTO retriage_trail.record VALUES (%s, %s, %s, %s, %s, %s)", row)


def test_a_role_with_an_unusual_name_can_write(url: str) -> None:
    role = 'o"brien\\é'
    with psycopg.connect(url, autocommit=True) as raw:
        quoted = psycopg.sql.Identifier(role)
        raw.execute(psycopg.sql.SQL("CREATE ROLE {} LOGIN SUPERUSER").format(quoted))
        try:
            with trail_at(url.replace("postgres@", 'o"brien%5C%C3%A9@')) as trail:
                trail.record_plan(sealed(trail), YES.who, YES.origin, START)
                assert trail.records()[0].body["server"]["session_user"] == role
        finally:
            raw.execute(psycopg.sql.SQL("REASSIGN OWNED BY {} TO postgres").format(quoted))
            raw.execute(psycopg.sql.SQL("DROP OWNED BY {}").format(quoted))
            raw.execute(psycopg.sql.SQL("DROP ROLE {}").format(quoted))
