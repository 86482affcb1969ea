"""Promise: what was anchored cannot be cut off or rewritten unnoticed, and nothing is written on such a trail."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from console.core.faults import TrailBroken, TrailUnavailable
from console.core.override import OverrideState
from console.trail.anchor import Anchor
from tests.cli.place import Place, failed
from tests.faults.world import KEEP, confirm, matching, world_in
from tests.trail.world import START, YES, begun, carried, sealed, trail_at


def finished(folder: Path, name: str) -> None:
    with trail_at(f"sqlite:///{folder}/trail.db", anchor=f"{folder}/anchors") as trail:
        carried(trail, name)
        trail.mark(name, OverrideState.FINISHED, "", START)


def test_nothing_is_written_on_a_trail_that_was_rolled_back_past_an_anchor(tmp_path: Path) -> None:
    finished(tmp_path, "op1")
    shutil.copy(tmp_path / "trail.db", tmp_path / "backup")
    finished(tmp_path, "op2")
    shutil.copy(tmp_path / "backup", tmp_path / "trail.db")
    for way in (
        lambda trail: begun(trail, "op3"), lambda trail: trail.refuse({"why": "test"}, START),
        lambda trail: trail.record_plan(sealed(trail), YES.who, YES.origin, START),
    ):
        with trail_at(f"sqlite:///{tmp_path}/trail.db", anchor=f"{tmp_path}/anchors") as trail:
            with pytest.raises(TrailBroken, match="does not continue its last anchor") as caught:
                way(trail)
            assert caught.value.exit_code == 5
            assert [o.override_id for o in trail.overrides()] == ["op1"]


def test_a_running_console_notices_a_roll_back_at_the_next_confirmation(tmp_path: Path) -> None:
    finished(tmp_path, "op1")
    with trail_at(f"sqlite:///{tmp_path}/trail.db", anchor=f"{tmp_path}/anchors") as trail:
        trail.refuse({"why": "test"}, START)
        with (tmp_path / "anchors").open("a") as anchors:
            anchors.write(f"99 {'ab' * 32} 2026-11-01T12:00:00.000000Z\n")
        with pytest.raises(TrailBroken):
            begun(trail, "op2")


def test_verify_says_exactly_which_anchors_were_found(tmp_path: Path) -> None:
    finished(tmp_path, "op1")
    finished(tmp_path, "op2")
    anchors = tmp_path / "anchors"
    lines = anchors.read_text().splitlines(keepends=True)
    assert len(lines) == 4
    with trail_at(f"sqlite:///{tmp_path}/trail.db") as trail:
        whole = trail.verified(str(anchors))
        seqs = [int(line.split()[0]) for line in lines]
        assert (whole.ok, list(whole.anchors), whole.anchors_missing) == (True, seqs, ())
        assert whole.anchor_summary == f"4 of 4 anchors found, the last of record {seqs[-1]}."
        anchors.write_text(lines[0] + lines[2])
        some = trail.verified(str(anchors))
        assert (some.ok, list(some.anchors), list(some.anchors_missing)) == (True, [seqs[0], seqs[2]], [seqs[1], seqs[3]])
        assert f"Missing: of record {seqs[1]}, {seqs[3]}." in some.anchor_summary
        assert "could be cut off unnoticed" in some.anchor_summary
        anchors.write_text("")
        assert not trail.verified(str(anchors)).ok
        assert "No anchor was found" in trail.verified().anchor_summary


def test_an_anchor_that_cannot_be_written_at_confirm_refuses_the_override(tmp_path: Path) -> None:
    with world_in(tmp_path) as world:
        world.queue.fill(10)
        console = world.console()
        console.trail._anchor = Anchor(str(tmp_path / "gone" / "anchors"))
        plan = console.propose(matching("condition:terminal", limit=5), KEEP)
        before = world.queue.rows()
        with pytest.raises(TrailUnavailable, match="anchor could not be written"):
            console.carry_out(plan, confirm(plan))
        assert world.queue.rows() == before
        (override,) = console.trail.overrides()
        assert override.state is OverrideState.STOPPED
        assert "Nothing was changed." in override.note
        assert not override.alive, "its leases are free"
        assert console.trail.verified().what == ""


def edited(place: Place) -> None:
    with closing(sqlite3.connect(trail_of(place), isolation_level=None)) as raw:
        raw.execute("DROP TRIGGER record_no_update")
        raw.execute("UPDATE record SET body = replace(body, 'requeue', 'restore') WHERE seq = 1")


def trail_of(place: Place) -> Path:
    return next(place.folder.rglob("trail.db"))


@pytest.mark.parametrize(
    ("damage", "words", "code"),
    [
        (edited, "broken at record 1", 1),
        (lambda place: trail_of(place).chmod(0o666), "can write the file", 0),
        (lambda place: trail_of(place).parent.chmod(0o777), "can write its folder", 0),
    ],
    ids=["edited", "world-writable", "in a world-writable folder"],
)
def test_check_reports_a_tampered_or_exposed_trail(
    place: Place, damage: Callable[[Place], None], words: str, code: int
) -> None:
    place.queue("jobs", *(failed(str(n)) for n in range(3)))
    assert place.run("plan", "--where", "condition:terminal").code == 0
    assert words not in place.run("check").out
    damage(place)
    done = place.run("check")
    assert words in done.out
    assert done.code == code
