"""`read_only: true` of one backend: its connection cannot write, no plan changes it, and both front ends say so."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from console import registry
from console.core.faults import ReadOnlyRefused
from console.core.session import Unavailable
from console.settings import load
from tests.cli.place import Place, failed
from tests.ui.driving import opened, screen_text, until
from tests.ui.world import small_world


@pytest.fixture
def both(place: Place) -> Place:
    place.queue("audited", failed("a"), more=", read_only: true")
    place.queue("ours", failed("b"))
    return place


def statuses(path: Path) -> list[str]:
    connection = sqlite3.connect(path)
    found = [status for (status,) in connection.execute("SELECT status FROM async_tasks")]
    connection.close()
    return found


def test_its_items_are_skipped_and_the_others_are_changed(both: Place) -> None:
    plan = json.loads(both.run("plan", "--where", "condition:terminal", "--attempts", "reset").out)
    assert (plan["selected"], plan["changes"]) == (2, 1)
    assert plan["skipped"] == {"audited is read-only in the config.": 1}
    assert both.run("apply", plan["plan_id"], "--reason", "x", "--confirm", "1").code == 0
    assert (statuses(both.folder / "audited.db"), statuses(both.folder / "ours.db")) == (["FAILED"], ["PENDING"])


def test_a_plan_from_before_is_refused(place: Place) -> None:
    path = place.queue("audited", failed("a"))
    plan = json.loads(place.run("plan", "--key", "audited/a").out)["plan_id"]
    place.attach("audited", more=", read_only: true")
    done = place.run("apply", plan, "--reason", "x", "--confirm", "1")
    assert (done.code, statuses(path)) == (3, ["FAILED"])
    assert "audited" in done.err
    assert "read-only" in done.err


def test_its_connection_cannot_write(both: Place) -> None:
    by_name = {backend.name: backend for backend in registry.open_all(load(both.write_config()))}
    for name, refused in (("audited", True), ("ours", False)):
        backend = by_name[name]
        assert not isinstance(backend, Unavailable)
        try:
            with backend.database.writing() as writer:  # type: ignore[attr-defined]
                writer.execute("UPDATE async_tasks SET attempts = 9", ())
            assert not refused
        except ReadOnlyRefused:
            assert refused
        backend.close()


def test_check_names_it_and_its_engine_does_not_run(both: Place) -> None:
    rows = [json.loads(line) for line in both.run("check").out.splitlines()]
    assert [row["backend"] for row in rows if row["subject"] == "mode"] == ["audited"]
    done = both.run("run", "audited")
    assert (done.code, "read-only" in done.err) == (3, True)


@pytest.mark.parametrize("value", ["5", "'yes'", "[]", "null"])
def test_anything_but_true_and_false_is_a_mistake(place: Place, value: str) -> None:
    place.queue("q", failed("a"), more=f", read_only: {value}")
    done = place.run("list")
    assert (done.code, "backends.q.read_only" in done.err) == (2, True), done.err


async def test_the_console_shows_which_system_is_read_only(tmp_path: Path) -> None:
    session = small_world(tmp_path, 20)
    name = session.backends[0].name
    async with opened(replace(session, read_only_backends=frozenset({name}))) as pilot:
        await until(pilot, lambda: f"{name} " in screen_text(pilot) and "read-only" in screen_text(pilot))
