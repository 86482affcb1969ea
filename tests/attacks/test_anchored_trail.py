"""Promise: what was anchored cannot be cut off or rewritten unnoticed, and nothing is written on such a trail."""

from __future__ import annotations

import os
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
            with pytest.raises(TrailBroken, match="does not match its last anchor") as caught:
                way(trail)
            assert caught.value.exit_code == 5
            assert [o.override_id for o in trail.overrides()] == ["op1"]


@pytest.mark.parametrize("added", ["an older anchor", "many lines", "a second anchor of the record"])
def test_what_is_added_to_the_anchors_does_not_hide_a_roll_back(tmp_path: Path, added: str) -> None:
    """An append-only file takes lines of anybody who may write to it."""
    finished(tmp_path, "op1")
    older = (tmp_path / "anchors").read_text().splitlines()[-1]
    shutil.copy(tmp_path / "trail.db", tmp_path / "backup")
    finished(tmp_path, "op2")
    seq, _, at = (tmp_path / "anchors").read_text().splitlines()[-1].split()
    shutil.copy(tmp_path / "backup", tmp_path / "trail.db")
    lines = {"an older anchor": f"{older}\n", "many lines": "\n" * 100_000, "a second anchor of the record": f"{seq} {'ab' * 32} {at}\n"}
    with (tmp_path / "anchors").open("a") as anchors:
        anchors.write(lines[added])
    with (
        trail_at(f"sqlite:///{tmp_path}/trail.db", anchor=f"{tmp_path}/anchors") as trail,
        pytest.raises(TrailBroken, match=f"last anchor, for record {seq}"),
    ):
        begun(trail, "op3")


@pytest.mark.parametrize("kind", ["pipe", "link to an endless device"])
def test_anchors_that_are_no_file_are_not_waited_for(place: Place, kind: str) -> None:
    place.queue("jobs", failed("a"))
    anchors = place.folder / "anchors"
    os.mkfifo(anchors) if kind == "pipe" else anchors.symlink_to("/dev/zero")
    place.console = f"  anchor: {anchors}\n"
    done = place.run("requeue", "--key", "jobs/a", "--reason", "r", "--confirm", "1")
    assert (done.code, "anchor could not be written" in done.err) == (3, True), done.err
    done = place.run("trail", "verify")
    assert (done.code, "not a regular file" in done.err) == (2, True), done.err


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


def test_anchors_in_syslog_are_checked_with_a_copy_of_the_log(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody can read syslog back, and `check` says so. A copy of the log shows a cut-off end like a file does."""
    lines: list[str] = []
    monkeypatch.setattr("console.trail.anchor.syslog.syslog", lambda _priority, text: lines.append(text))
    place.queue("jobs", failed("a"), failed("b"))
    place.console = "  anchor: syslog\n"
    assert place.run("requeue", "--key", "jobs/a", "--reason", "r", "--confirm", "1").code == 0
    assert len(lines) == 2, "at the confirmation and at the end"
    assert "syslog cannot be read back" in place.run("check").out
    log = place.folder / "auth.log"
    log.write_text("".join(f"Nov 18 12:00:0{n} host retriage[7]: {line}\n" for n, line in enumerate(lines)))
    assert place.run("trail", "verify", "--anchor", str(log)).code == 0
    with closing(sqlite3.connect(trail_of(place), isolation_level=None)) as raw:
        raw.execute("DROP TRIGGER record_no_delete")
        raw.execute("DELETE FROM record WHERE seq = (SELECT max(seq) FROM record)")
    assert place.run("trail", "verify", "--anchor", str(log)).code == 5
