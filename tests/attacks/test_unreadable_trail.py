"""Promise: a trail that cannot be read is neither intact nor broken, and a command says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa

from console.core.faults import TrailUnreadable
from tests.plugins.postgres_analyses.server import database, server
from tests.trail.world import carried, trail_at

GRANTED = "GRANT USAGE ON SCHEMA retriage_trail TO {role}; GRANT SELECT ON ALL TABLES IN SCHEMA retriage_trail TO {role};"


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A trail of one override, with an anchor."""
    with database() as found:
        with trail_at(found, anchor=str(tmp_path / "anchors")) as trail:
            carried(trail)
        yield found


@pytest.fixture
def reader(url: str) -> Iterator[str]:
    """The same as a role without any rights."""
    parsed = sa.make_url(url)
    role = f"auditor_{parsed.database}"
    server().execute(f"CREATE ROLE {role} LOGIN")
    yield parsed.set(username=role).render_as_string(hide_password=False)
    run(url, f"DROP OWNED BY {role}; DROP ROLE {role}")


def run(url: str, sql: str) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(sql)


@pytest.mark.parametrize(
    ("rights", "why"),
    [
        ("", "may not use its schema"),
        ("GRANT SELECT ON ALL TABLES IN SCHEMA retriage_trail TO {role}", "may not use its schema"),
        ("GRANT USAGE ON SCHEMA retriage_trail TO {role}", "lacks a privilege"),
        (GRANTED + "REVOKE SELECT ON retriage_trail.record FROM {role}", "lacks a privilege"),
        (GRANTED + "REVOKE SELECT ON retriage_trail.item_outcome FROM {role}", "lacks a privilege"),
        (GRANTED + "REVOKE SELECT ON retriage_trail.plan_block FROM {role}", "lacks a privilege"),
        (GRANTED + "ALTER TABLE retriage_trail.record ENABLE ROW LEVEL SECURITY", "row security hides rows of record"),
    ],
)
def test_a_trail_that_may_not_be_read_is_not_called_intact_or_cut(
    url: str, reader: str, tmp_path: Path, rights: str, why: str
) -> None:
    run(url, rights.format(role=sa.make_url(reader).username) or "SELECT 1")
    for anchors in (None, str(tmp_path / "anchors")):
        with trail_at(reader, read_only=True) as trail, pytest.raises(TrailUnreadable, match=why) as caught:
            trail.verified(anchors)
        assert caught.value.exit_code == 4


def test_a_role_with_the_rights_to_read_verifies_it(url: str, reader: str, tmp_path: Path) -> None:
    server_side = GRANTED.format(role=sa.make_url(reader).username)
    run(url, server_side)
    with trail_at(reader, read_only=True) as trail:
        assert trail.verified(str(tmp_path / "anchors")).ok


def test_a_pipe_in_place_of_the_file_is_neither_intact_nor_broken(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "trail.db")
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail, pytest.raises(TrailUnreadable) as caught:
        trail.verified()
    assert caught.value.exit_code == 4
