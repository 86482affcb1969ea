from __future__ import annotations

import csv
import io
import json
import stat
import syslog
from pathlib import Path

import pytest

from console.core.faults import UsageFault
from console.core.override import OverrideState
from console.core.plan import canonical
from console.trail.anchor import Anchor, AnchorLine, read_anchors
from console.trail.export import FIELDS, export
from console.trail.record import link, stamp
from console.trail.store import TrailStore
from tests.trail.world import START, begun, carried, chunk, results, trail_at

LINE = AnchorLine(7, "ab" * 32, START)


def test_the_end_of_an_override_is_anchored_privately(url: str, tmp_path: Path) -> None:
    anchors = tmp_path / "anchors"
    with trail_at(url, anchor=str(anchors)) as trail:
        carried(trail)
        confirmed = read_anchors(anchors)
        assert [anchor.seq for anchor in confirmed] == [3], "its beginning is anchored"
        trail.mark("op1", OverrideState.PAUSED, "", START)
        assert read_anchors(anchors) == confirmed
        trail.mark("op1", OverrideState.STOPPED, "", START)
        last = trail.newest(limit=1)[0]
        assert (last.kind, trail.warnings) == ("anchor", [])
        assert read_anchors(anchors) == [*confirmed, AnchorLine(last.seq, last.hash, START)]
        assert stat.S_IMODE(anchors.stat().st_mode) == 0o600
        assert trail.verify(read_anchors(anchors)).ok
        wrong = AnchorLine(last.seq, "0" * 64, START)
        assert trail.verify([wrong]).first_bad == last.seq
        assert "contradict" not in trail.verify([*read_anchors(anchors), wrong]).what
        assert not trail.verify([*read_anchors(anchors), wrong]).ok
        ahead = AnchorLine(last.seq + 3, "0" * 64, START)
        assert trail.verify([ahead]).first_bad == last.seq + 1


@pytest.mark.parametrize("place", ["missing/folder/anchors", ".", "link"])
def test_an_anchor_that_fails_at_the_end_is_a_warning_on_record(sqlite_url: str, tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with trail_at(sqlite_url) as trail:
        carried(trail)
    with trail_at(sqlite_url, anchor=str(tmp_path / place)) as trail:
        trail.mark("op1", OverrideState.FINISHED, "", START)
        assert trail.override("op1").state is OverrideState.FINISHED
        assert "anchored" in trail.warnings[0]
        assert trail.newest(limit=1)[0].body["failed"]
        assert trail.verify().ok


def test_without_a_second_place_there_is_no_anchor_record(sqlite_trail: TrailStore) -> None:
    carried(sqlite_trail)
    sqlite_trail.mark("op1", OverrideState.FINISHED, "", START)
    assert sqlite_trail.newest(limit=1)[0].kind == "state"


def test_syslog_gets_the_same_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lambda priority, text: lines.append(text))
    assert Anchor("syslog").write(LINE) is None
    log = tmp_path / "auth.log"
    log.write_text(f"Nov  1 12:00:00 host cron[1]: something else\nNov  1 12:00:00 host retriage: {lines[0]}\n")
    assert read_anchors(log) == [LINE]


def test_a_file_without_anchors_is_not_taken_for_proof(tmp_path: Path) -> None:
    file = tmp_path / "notes"
    file.write_text("nothing here\n")
    for path in (file, tmp_path / "none"):
        with pytest.raises(UsageFault):
            read_anchors(path)
    file.write_text("")
    assert read_anchors(file) == []


def test_a_trail_that_was_anchored_is_not_proved_without_its_anchors(url: str, tmp_path: Path) -> None:
    anchors, elsewhere = tmp_path / "anchors", tmp_path / "elsewhere"
    with trail_at(url, anchor=str(anchors)) as trail:
        carried(trail)
        anchored = 3
        trail.mark("op1", OverrideState.FINISHED, "", START)
        assert trail.verified(str(anchors)).ok
        anchors.unlink()
        with pytest.raises(UsageFault):
            trail.verified(str(elsewhere))
        found = [trail.verified(str(anchors))]
        for file in (anchors, elsewhere):
            file.write_text("")
            found.append(trail.verified(str(file)))
        assert [(each.ok, each.first_bad, "deleted" in each.what) for each in found] == [(False, anchored, True)] * 3
        assert trail.verified().ok


def test_anchors_that_could_not_be_written_are_not_missed(sqlite_url: str, tmp_path: Path) -> None:
    place = tmp_path / "missing" / "anchors"
    with trail_at(sqlite_url) as trail:
        carried(trail)
    with trail_at(sqlite_url, anchor=str(place)) as trail:
        trail.mark("op1", OverrideState.FINISHED, "", START)
        assert trail.verified(str(place)).ok


def test_a_line_cut_short_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    monkeypatch.setattr(os, "write", lambda file, data: len(data) - 1)
    assert Anchor(str(tmp_path / "anchors")).write(LINE) == "the line was cut short"


def hostile(trail: TrailStore) -> None:
    _, owner = begun(trail)
    seq = trail.intend("op1", owner, chunk(0, 1), START)
    trail.conclude("op1", owner, seq, [*results(0, 0), *results(1, 1, "failed", '=cmd|"\x1b\udcff')], {}, START)


def test_jsonl_holds_everything_to_verify_it_elsewhere(trail: TrailStore) -> None:
    hostile(trail)
    out = io.StringIO()
    assert export(trail, out, "jsonl", items=True) == 4
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["planned", "confirmed", "intent", "outcome", "item", "item"]
    assert lines[5] == {"seq": 4, "kind": "item", "at": stamp(START), "ordinal": 1, "key": "queue/000001", "outcome": "failed", "detail": '=cmd|"\x1b\udcff'}
    for line in lines[:4]:
        assert link(line["prev"], line["seq"], line["kind"], line["at"], canonical(line["body"])) == line["hash"]
    assert out.getvalue().replace("\n", "").isprintable()
    assert lines[0]["at"] == stamp(START)


def test_csv_has_no_formula(trail: TrailStore) -> None:
    hostile(trail)
    out = io.StringIO()
    assert export(trail, out, "csv", items=True) == 4
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert tuple(rows[0]) == FIELDS
    assert [row["kind"] for row in rows] == ["planned", "confirmed", "intent", "outcome", "item", "item"]
    assert rows[5]["detail"] == "'=cmd|\"␛\\udcff"
    assert out.getvalue().encode()
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
    assert json.loads(rows[1]["body"])["override_id"] == "op1"


def test_the_port_exports_and_verifies_by_name(url: str, tmp_path: Path) -> None:
    anchors = tmp_path / "anchors"
    with trail_at(url, anchor=str(anchors)) as trail:
        hostile(trail)
        trail.mark("op1", OverrideState.STOPPED, "", START)
        assert trail.verified().ok
        assert trail.verified(str(anchors)).ok
        anchors.write_text(f"{AnchorLine(99, 'ab' * 32, START)}\n")
        assert trail.verified(str(anchors)).first_bad == 8
        for form in ("jsonl", "csv"):
            assert trail.export(io.StringIO(), form, items=True) == 7
        with pytest.raises(UsageFault):
            trail.export(io.StringIO(), "xml")


def test_without_items_only_records_are_exported(sqlite_trail: TrailStore) -> None:
    hostile(sqlite_trail)
    out = io.StringIO()
    assert export(sqlite_trail, out, "jsonl") == len(out.getvalue().splitlines()) == 4
