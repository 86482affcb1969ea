"""The triage list on real queues."""

from __future__ import annotations

import csv
import json
import os
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from textual.app import App, ComposeResult

from console.cli.render import RowFormat, print_rows
from console.core.backend import Count, PageRequest
from console.core.export import FIELDS, record
from console.core.faults import BackendFault, Refused
from console.core.listing import Listing
from console.core.query import Filter, Sort
from console.ui import export
from console.ui.backend_calls import BackendCallers
from console.ui.merged_pager import CHUNK, KEPT_CHUNKS
from console.ui.messages import CountsReady
from console.ui.screens.item import ItemScreen
from console.ui.widgets.item_list import ItemList, Question
from tests.ui.driving import NARROW, console, failures, filtered, items, keys, opened, screen_text, toasts, until
from tests.ui.world import NOON, async_row, at, make_async, open_queue, session, small_world


async def test_shows_what_needs_attention_over_all_backends(tmp_path: Path) -> None:
    given = small_world(tmp_path, 40)
    expected = [item.key for item in Listing(given.backends, Filter(), NOON)]
    async with opened(given) as pilot:
        await failures(pilot)
        table = items(pilot)
        await until(pilot, lambda: table.complete)
        assert [table.item_at(row).key for row in range(table.total())] == expected  # type: ignore[union-attr]
        assert f"1 of {len(expected)}" in screen_text(pilot)


async def test_a_filter_narrows_and_a_mistake_keeps_the_last_good_one(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        screen = await failures(pilot)
        await filtered(pilot, "condition:terminal backend:jobs")
        await until(pilot, lambda: keys(pilot) and all(key.startswith("job") for key in keys(pilot)))
        shown = keys(pilot)
        await pilot.press("slash", "space", *"conditio:x")
        await until(pilot, lambda: "Unknown field 'conditio'" in screen_text(pilot))
        assert keys(pilot) == shown
        await pilot.press("escape")
        await until(pilot, lambda: not screen.bar.problem)
        assert screen.bar.input.value == "condition:terminal backend:jobs"
        assert items(pilot).has_focus


async def test_typing_while_the_list_empties_and_fills_keeps_the_focus(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        screen = await failures(pilot)
        await pilot.press("slash", *"zzz")
        await until(pilot, lambda: "Nothing matches" in screen_text(pilot))
        await pilot.press("backspace", "backspace", "backspace")
        await until(pilot, lambda: keys(pilot))
        assert screen.bar.input.has_focus


async def test_nothing_to_see_says_so(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 0)
    async with opened(session([open_queue(tmp_path / "a.db", "quiet")]), NARROW) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: "Nothing needs attention" in screen_text(pilot))
        await pilot.press("3")
        await until(pilot, lambda: "No failures" in screen_text(pilot))
        await pilot.press("4")
        await until(pilot, lambda: "There is no trail" in screen_text(pilot))


async def test_marks_one_range_screen_all_and_none(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 200)) as pilot:
        await failures(pilot)
        table = items(pilot)
        await pilot.press("space")
        assert list(table.marks) == [table.item_at(0).key]  # type: ignore[union-attr]
        assert table.cursor == 1
        await pilot.press("down", "down", "v")
        assert len(table.marks) == 4
        await pilot.press("a")
        assert len(table.marks) == len(keys(pilot))
        await pilot.press("A")
        await until(pilot, lambda: "175 marked: all that match" in screen_text(pilot))
        await pilot.press("u")
        assert not table.marks
        assert not table.everything


async def test_a_refresh_keeps_cursor_and_marks_on_their_items(tmp_path: Path) -> None:
    given = small_world(tmp_path, 100)
    async with opened(given) as pilot:
        await failures(pilot)
        table = items(pilot)
        await pilot.press("space", "down", "down")
        marked, under = next(iter(table.marks)), table.item.key  # type: ignore[union-attr]
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            for n in range(3):
                row = list(async_row(6, NOON))
                row[0], row[5] = f"new-{n}", at(NOON + timedelta(days=1, minutes=n))
                db.execute("INSERT INTO async_tasks VALUES (?,?,?,?,?,?,?,?,?)", row)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "new-0" in keys(pilot))
        assert table.item.key == under  # type: ignore[union-attr]
        assert table.cursor == 6
        assert marked in table.marks


async def test_an_item_that_leaves_the_list_stays_under_the_cursor(tmp_path: Path) -> None:
    given = small_world(tmp_path, 100)
    async with opened(given) as pilot:
        await failures(pilot)
        table = items(pilot)
        await pilot.press("down")
        under = table.item.key  # type: ignore[union-attr]
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            db.execute("UPDATE async_tasks SET status = 'DONE' WHERE task_id = ?", under.parts)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: f"{under}  no longer matches" in screen_text(pilot))
        assert table.item.key == under  # type: ignore[union-attr]
        await pilot.press("down", "ctrl+r")
        await until(pilot, lambda: under.id not in keys(pilot))


async def test_sorting_merges_the_backends(tmp_path: Path) -> None:
    given = small_world(tmp_path, 150)
    async with opened(given) as pilot:
        screen = await failures(pilot)
        table = items(pilot)
        for sort in (Sort.parse("updated"), Sort.parse("attempts:asc"), Sort.parse("next")):
            screen.sort = sort
            await until(pilot, lambda: table.item_at(0) is not None)
            expected = [item.key for item in Listing(given.backends, Filter(), NOON, sort)]
            await pilot.press("end")
            await until(pilot, lambda last=expected[-1]: table.item.key == last)  # type: ignore[union-attr]
            await pilot.press("home")
            await until(pilot, lambda: table.cursor == 0 and table.item is not None)
            await until(pilot, lambda first=expected[:20]: [table.item_at(row).key for row in range(20)] == first)  # type: ignore[union-attr]
            assert len({key.backend for key in expected[:60]}) == 2 or sort.field == "next"


async def test_the_end_is_read_from_the_end_and_little_is_kept(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 6_000)
    queue = open_queue(tmp_path / "a.db", "big")
    asked: list[PageRequest] = []
    page = queue.page
    queue.page = lambda request: (asked.append(request), page(request))[1]  # type: ignore[method-assign]
    async with opened(session([queue])) as pilot:
        screen = await failures(pilot)
        await until(pilot, lambda: screen._count)
        table = items(pilot)
        asked.clear()
        await pilot.press("end")
        await until(pilot, lambda: table.item is not None)
        last = list(Listing([queue], Filter(), NOON))[-1]
        assert table.item.key == last.key  # type: ignore[union-attr]
        assert sum(request.backward for request in asked) <= 3
        for _ in range(40):
            table.action_page(-1)
            await until(pilot, lambda: table.item is not None)
        assert len(table._pager._chunks) <= KEPT_CHUNKS  # type: ignore[union-attr]
        assert max(request.limit for request in asked if request.backward) == CHUNK


async def test_narrow_terminals_drop_columns_and_never_wrap(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 50), NARROW) as pilot:
        await failures(pilot)
        heading = screen_text(pilot).splitlines()[2]
        assert heading.split() == ["condition", "system", "id", "attempts", "next", "retry", "updated", "error"]
        await pilot.resize_terminal(60, 20)
        await until(pilot, lambda: "updated" not in screen_text(pilot).splitlines()[2])
        assert screen_text(pilot).splitlines()[2].split() == ["condition", "system", "id", "next", "retry", "error"]


async def test_countdowns_tick(tmp_path: Path) -> None:
    given = small_world(tmp_path, 30)
    async with opened(given) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:retrying")
        await until(pilot, lambda: "due in" in screen_text(pilot) or "in " in screen_text(pilot).splitlines()[3])
        table = items(pilot)
        before = screen_text(pilot).splitlines()[3]
        given.clock.tick(timedelta(seconds=7))  # type: ignore[attr-defined]
        table._tick()
        await pilot.pause()
        after = screen_text(pilot).splitlines()[3]
        assert before != after
        assert before[:40] == after[:40]


async def test_views_and_copying_keys(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 50)) as pilot:
        screen = await failures(pilot)
        await pilot.press("f", *"hopel", "enter")
        await until(pilot, lambda: str(screen.filter) == "condition:terminal")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("space", "space", "y")
        assert console(pilot).clipboard == "\n".join(map(str, items(pilot).marks))


async def test_enter_opens_the_item_and_escape_returns(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 50)) as pilot:
        screen = await failures(pilot)
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen)
        assert items(pilot).cursor == 1


async def test_export_writes_what_is_marked_or_all_that_match(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 50)) as pilot:
        await failures(pilot)
        await pilot.press("space", "space")
        marked = {str(key) for key in items(pilot).marks}
        for name, read in (("some.jsonl", _jsonl_keys), ("some.csv", _csv_keys)):
            pilot.app.screen._export_to(str(tmp_path / name))  # type: ignore[attr-defined]
            await until(pilot, lambda read=read, name=name: read(tmp_path / name) == marked)
        await pilot.press("u")
        pilot.app.screen._export_to(str(tmp_path / "all.jsonl"))  # type: ignore[attr-defined]
        await until(pilot, lambda: len(_jsonl_keys(tmp_path / "all.jsonl")) == items(pilot).total())
        pilot.app.screen._export_to(str(tmp_path / "all.jsonl"))  # type: ignore[attr-defined]
        await until(pilot, lambda: "already exists" in toasts(pilot))
        await pilot.press("e")
        await until(pilot, lambda: "one JSON object per line" in screen_text(pilot))


async def test_a_path_nothing_can_be_written_to_is_reported_and_the_console_stays(tmp_path: Path) -> None:
    (tmp_path / "occupied").touch()
    given = replace(small_world(tmp_path, 50), views_file=tmp_path / "occupied" / "retriage" / "views.json")
    async with opened(given) as pilot:
        screen = await failures(pilot)
        await pilot.press("e", *"~nope/x.csv", "enter")
        await until(pilot, lambda: "No such home folder: ~nope/x.csv" in toasts(pilot))
        await until(pilot, lambda: pilot.app.screen is screen)
        await pilot.press("w", *"mine", "enter")
        await until(pilot, lambda: "occupied/retriage/views.json cannot be written" in toasts(pilot))
        await pilot.press("f")
        await until(pilot, lambda: "hopeless" in screen_text(pilot))


def test_a_full_disk_is_reported_and_nothing_half_written_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fdopen = os.fdopen

    def on_a_full_disk(handle: int, *args: object, **more: object) -> object:
        os.dup2(os.open("/dev/full", os.O_WRONLY), handle)
        return fdopen(handle, *args, **more)  # type: ignore[call-overload]

    given = small_world(tmp_path, 50)
    monkeypatch.setattr(os, "fdopen", on_a_full_disk)
    with pytest.raises(Refused, match=r"x\.jsonl cannot be written: No space left"):
        export.write(tmp_path / "x.jsonl", Listing(given.backends, Filter(), NOON))
    assert not (tmp_path / "x.jsonl").exists()


def test_a_marked_item_of_a_backend_that_does_not_answer_is_reported_and_nothing_is_written(tmp_path: Path) -> None:
    answering, hanging = small_world(tmp_path, 50).backends
    keys = [item.key for item in Listing([answering, hanging], Filter(), NOON)]
    with pytest.raises(BackendFault, match="jobs: The system reported an error"):
        export.write(tmp_path / "x.jsonl", export.named([answering], keys, NOON))
    assert not (tmp_path / "x.jsonl").exists()


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_an_export_is_what_the_command_line_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    make_async(tmp_path / "a.db", 20)
    with sqlite3.connect(tmp_path / "a.db") as db:
        db.execute("UPDATE async_tasks SET last_error = ? WHERE task_id = 'task-00003'", ("=1\x1b]0;x\a\nnext",))
    for asked, shown in (("", True), ("key:nothing", False)):
        listing = Listing([open_queue(tmp_path / "a.db", "q")], Filter.parse(asked), NOON)
        path = tmp_path / f"{shown}.{form}"
        export.write(path, listing)
        print_rows(listing, RowFormat(FIELDS, record, ()), form)
        written = path.read_bytes().decode()
        assert written == capsys.readouterr().out
        assert ("'=1␛]0;x␇␊next" in written or r'"=1\u001b]0;x\u0007\nnext"' in written) is shown


def test_a_name_that_says_no_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"Use a name that ends in \.csv or \.jsonl"):
        export.write(tmp_path / "x.xlsx", ())
    assert not (tmp_path / "x.xlsx").exists()


def _jsonl_keys(path: Path) -> set[str]:
    return {json.loads(line)["key"] for line in path.read_text().splitlines()}


def _csv_keys(path: Path) -> set[str]:
    with path.open(newline="") as file:
        return {row["key"] for row in csv.DictReader(file)}


async def test_a_view_is_saved_and_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with opened(small_world(tmp_path, 50)) as pilot:
        screen = await failures(pilot)
        await filtered(pilot, "condition:stuck")
        await pilot.press("w", *"lost ones", "enter")
        await until(pilot, lambda: screen.views.saved() == {"lost ones": "condition:stuck"})
        assert screen.views.file.stat().st_mode & 0o077 == 0
        screen.narrow("")
        await pilot.press("f", *"lost", "enter")
        await until(pilot, lambda: str(screen.filter) == "condition:stuck")
        screen.narrow("")
        await pilot.press("1", "colon", *"lost", "enter")
        await until(pilot, lambda: pilot.app.screen is screen and str(screen.filter) == "condition:stuck")


async def test_a_key_between_the_first_rows_and_the_scrollbar_scrolls(tmp_path: Path) -> None:
    """Rows are there before their scrollbar is given out, and without one Textual scrolls nowhere."""
    given = small_world(tmp_path, 200)

    class Hasty(ItemList):
        def _take(self, change: Callable[[], None]) -> None:
            super()._take(change)
            if self.cursor == 0:
                assert not self.show_vertical_scrollbar
                self.action_page(1)
                self.action_page(1)

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield Hasty(BackendCallers(given.backends, 5.0), given.clock.now)

    async with Alone().run_test(size=NARROW) as pilot:
        table = pilot.app.query_one(Hasty)
        table.question = Question(Filter(), Sort())
        await until(pilot, lambda: table.cursor > 0 and table.item is not None)
        assert table.top <= table.cursor < table.top + table.rows_shown


async def test_a_list_without_one_of_its_backends_is_at_least_so_long(tmp_path: Path) -> None:
    """The row that says so is no failure, and how many are behind it nobody knows."""
    small = small_world(tmp_path, 20)
    shown = len(list(Listing(small.backends, Filter(), NOON)))
    given = session([*small.backends, open_queue(tmp_path / "missing.db", "gone")], small.clock)
    async with opened(given) as pilot:
        await failures(pilot)
        await until(pilot, lambda: items(pilot).complete)
        await until(pilot, lambda: f"1 of ≥ {shown}" in screen_text(pilot))


async def test_a_backend_that_answers_again_since_it_was_counted_makes_no_negative_number(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 1)
    async with opened(session([open_queue(tmp_path / "a.db", "q")])) as pilot:
        screen = await failures(pilot)
        await until(pilot, lambda: items(pilot).complete and screen._count)
        screen.post_message(CountsReady(screen._generation, Count(0), ["q", "gone"]))
        await until(pilot, lambda: "1 of ≥ 0" in screen_text(pilot))


async def test_a_sorted_column_that_is_narrow_keeps_title_and_arrow(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 40), NARROW) as pilot:
        screen = await failures(pilot)
        screen.sort = Sort.parse("next")
        await until(pilot, lambda: "next retry↑ updated" in screen_text(pilot))
        screen.sort = Sort.parse("-attempts")
        await until(pilot, lambda: "attempts↓ next retry" in screen_text(pilot))
        screen.sort = Sort.parse("id")
        await until(pilot, lambda: "id ↑" in screen_text(pilot) and "next retry " in screen_text(pilot))
