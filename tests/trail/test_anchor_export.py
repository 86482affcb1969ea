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
from console.trail.export import CSV_HEADER, export_csv, export_jsonl
from console.trail.record import link, stamp
from console.trail.store import TrailBook
from tests.trail.world import START, begun, book_at, carried, chunk, results

LINE = AnchorLine(7, "ab" * 32, START)


def test_the_end_of_an_override_is_anchored_privately(url: str, tmp_path: Path) -> None:
    anchors = tmp_path / "anchors"
    with book_at(url, anchor=str(anchors)) as book:
        carried(book)
        assert not anchors.exists()
        book.mark("op1", OverrideState.PAUSED, "", START)
        assert not anchors.exists()
        book.mark("op1", OverrideState.STOPPED, "", START)
        last = book.newest(limit=1)[0]
        assert (last.kind, book.warnings) == ("anchor", [])
        assert read_anchors(anchors) == [AnchorLine(last.seq, last.hash, START)]
        assert stat.S_IMODE(anchors.stat().st_mode) == 0o600
        assert book.verify(read_anchors(anchors)).ok
        wrong = AnchorLine(last.seq, "0" * 64, START)
        assert book.verify([wrong]).first_bad == last.seq
        assert "contradict" not in book.verify([*read_anchors(anchors), wrong]).what
        assert not book.verify([*read_anchors(anchors), wrong]).ok
        ahead = AnchorLine(last.seq + 3, "0" * 64, START)
        assert book.verify([ahead]).first_bad == last.seq + 1


@pytest.mark.parametrize("place", ["missing/folder/anchors", ".", "link"])
def test_an_anchor_that_fails_is_a_warning_on_record(sqlite_url: str, tmp_path: Path, place: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with book_at(sqlite_url, anchor=str(tmp_path / place)) as book:
        carried(book)
        book.mark("op1", OverrideState.FINISHED, "", START)
        assert book.override("op1").state is OverrideState.FINISHED
        assert "anchored" in book.warnings[0]
        assert book.newest(limit=1)[0].body["failed"]
        assert book.verify().ok


def test_without_a_second_place_there_is_no_anchor_record(sqlite_book: TrailBook) -> None:
    carried(sqlite_book)
    sqlite_book.mark("op1", OverrideState.FINISHED, "", START)
    assert sqlite_book.newest(limit=1)[0].kind == "state"


def test_syslog_gets_the_same_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines: list[str] = []
    monkeypatch.setattr(syslog, "syslog", lambda priority, text: lines.append(text))
    assert Anchor("syslog").drop(LINE) is None
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
    with book_at(url, anchor=str(anchors)) as book:
        carried(book)
        assert book.verified(str(anchors)).ok  # nothing has ended yet
        book.mark("op1", OverrideState.FINISHED, "", START)
        assert book.verified(str(anchors)).ok
        anchored = book.newest(limit=1)[0].seq
        anchors.unlink()
        with pytest.raises(UsageFault):
            book.verified(str(elsewhere))
        found = [book.verified(str(anchors))]
        for file in (anchors, elsewhere):
            file.write_text("")
            found.append(book.verified(str(file)))
        assert [(each.ok, each.first_bad, "gone" in each.what) for each in found] == [(False, anchored, True)] * 3
        assert book.verified().ok


def test_anchors_that_could_not_be_written_are_not_missed(sqlite_url: str, tmp_path: Path) -> None:
    place = tmp_path / "missing" / "anchors"
    with book_at(sqlite_url, anchor=str(place)) as book:
        carried(book)
        book.mark("op1", OverrideState.FINISHED, "", START)
        assert book.verified(str(place)).ok


def test_a_line_cut_short_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    monkeypatch.setattr(os, "write", lambda file, data: len(data) - 1)
    assert Anchor(str(tmp_path / "anchors")).drop(LINE) == "the line was cut short"


def hostile(book: TrailBook) -> None:
    _, owner = begun(book)
    seq = book.intend("op1", owner, chunk(0, 1), START)
    book.conclude("op1", owner, seq, [*results(0, 0), *results(1, 1, "failed", '=cmd|"\x1b\udcff')], {}, START)


def test_jsonl_holds_everything_to_verify_it_elsewhere(book: TrailBook) -> None:
    hostile(book)
    out = io.StringIO()
    assert export_jsonl(book, out, items=True) == 3
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["kind"] for line in lines] == ["confirm", "intent", "outcome", "item", "item"]
    assert lines[4] == {"seq": 3, "kind": "item", "ordinal": 1, "key": "queue/000001", "outcome": "failed", "detail": '=cmd|"\x1b\udcff'}
    for line in lines[:3]:
        assert link(line["prev"], line["seq"], line["kind"], line["at"], canonical(line["body"])) == line["hash"]
    assert out.getvalue().replace("\n", "").isprintable()
    assert lines[0]["at"] == stamp(START)


def test_csv_has_no_formula(book: TrailBook) -> None:
    hostile(book)
    out = io.StringIO()
    assert export_csv(book, out, items=True) == 3
    rows = list(csv.DictReader(io.StringIO(out.getvalue())))
    assert tuple(rows[0]) == CSV_HEADER
    assert [row["kind"] for row in rows] == ["confirm", "intent", "outcome", "item", "item"]
    assert rows[4]["detail"] == "'=cmd|\"\x1b\\udcff"
    assert out.getvalue().encode()
    assert all(not cell.startswith(("=", "+", "-", "@")) for row in rows for cell in row.values())
    assert json.loads(rows[0]["body"])["op_id"] == "op1"


def test_the_port_exports_and_verifies_by_name(url: str, tmp_path: Path) -> None:
    anchors = tmp_path / "anchors"
    with book_at(url, anchor=str(anchors)) as book:
        hostile(book)
        book.mark("op1", OverrideState.STOPPED, "", START)
        assert book.verified().ok
        assert book.verified(str(anchors)).ok
        anchors.write_text(f"{AnchorLine(99, 'ab' * 32, START)}\n")
        assert book.verified(str(anchors)).first_bad == 6
        for form in ("jsonl", "csv"):
            assert book.export(io.StringIO(), form, items=True) == 5
        with pytest.raises(UsageFault):
            book.export(io.StringIO(), "xml")


def test_without_items_only_records_are_exported(sqlite_book: TrailBook) -> None:
    hostile(sqlite_book)
    out = io.StringIO()
    assert export_jsonl(sqlite_book, out) == len(out.getvalue().splitlines()) == 3
