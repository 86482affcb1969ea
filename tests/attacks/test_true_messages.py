"""Promise: a message about an interrupted override says what was done, what is on record, and how to go on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from console.core.executor import Progress
from console.core.faults import TrailBroken, TrailLost
from tests.cli.place import Place, failed
from tests.faults.world import KEEP, ORIGIN, WHO, World, confirm, matching, world_in

FULL = "CREATE TRIGGER full BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'database or disk is full'); END"


def filled(world: World, table: str = "record") -> None:
    world.trail_run(FULL.format(table=table))


@pytest.mark.parametrize("table", ["record", "item_outcome"])
def test_a_trail_that_fills_up_in_the_middle(tmp_path: Path, table: str) -> None:
    with world_in(tmp_path) as world:
        world.queue.fill(3_000)
        console = world.console()
        plan = console.propose(matching("condition:terminal"), KEEP)
        full = False

        def watch(progress: Progress) -> None:
            nonlocal full
            if progress.done and not full:
                full = True
                filled(world, table)

        with pytest.raises(TrailLost) as caught:
            console.carry_out(plan, confirm(plan), watch=watch)
        text = str(caught.value)
        (override,) = console.trail.overrides()
        on_record, changed = override.counts["applied"], sum(row[3] == "PENDING" for row in world.queue.rows())
        assert 0 < on_record < plan.changes
        assert f"On record: {on_record} requeued of {plan.changes}." in text
        if changed > on_record:
            assert f"The outcome of {changed - on_record} more items is not on record yet." in text
        assert (table == "record") == (changed == on_record)
        assert caught.value.exit_code == 1, "it is not a refusal: something was changed"
        assert caught.value.advice is not None
        assert caught.value.advice.value == override.override_id
        world.trail_run("DROP TRIGGER full")
        done = console.resume(override.override_id, WHO, ORIGIN)
        assert done.counts == {"applied": plan.changes}
        assert console.trail.verified().what == ""


def test_a_trail_that_is_rewritten_in_the_middle(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        world.queue.fill(3_000)
        console = world.console()
        plan = console.propose(matching("condition:terminal"), KEEP)

        def watch(progress: Progress) -> None:
            if progress.done:
                with closing(sqlite3.connect(world.trail_file, isolation_level=None)) as raw:
                    raw.execute("DROP TRIGGER IF EXISTS record_no_update")
                    raw.execute("UPDATE record SET body = '{}' WHERE seq = (SELECT max(seq) FROM record)")

        with pytest.raises(TrailBroken, match=r"On record: [0-9]+ requeued of"):
            console.carry_out(plan, confirm(plan), watch=watch)


def test_the_command_says_it_too(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.queue("jobs", *(failed(str(n)) for n in range(400)))
    place.console = "  max_items: 1000\n  chunk_target: 1ms\n"
    plan = place.run("plan", "--where", "condition:terminal", "--format", "json")
    assert plan.code == 0
    trail = next(place.folder.rglob("trail.db"))
    from console.trail.store import TrailStore

    conclude = TrailStore.conclude

    def once(self: TrailStore, *given: object) -> None:
        conclude(self, *given)  # type: ignore[arg-type]
        with closing(sqlite3.connect(trail, isolation_level=None)) as raw:
            raw.execute(FULL.format(table="record").replace("TRIGGER", "TRIGGER IF NOT EXISTS"))

    monkeypatch.setattr(TrailStore, "conclude", once)
    done = place.run("requeue", "--where", "condition:terminal", "--reason", "r", "--confirm", "400")
    assert done.code == 1
    assert "On record: " in done.err
    assert "retriage overrides resume o" in done.err
    assert "nothing" not in done.err.lower()
