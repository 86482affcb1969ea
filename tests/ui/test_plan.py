"""The plan: what it shows, what can be chosen, and how it is confirmed."""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from textual import events

from console.core.pace import Canary, Now
from console.core.plan import Plan
from console.core.policy import PolicyOverride
from console.core.text import telling_line
from console.ui.preview import PlannedItem, item_tables
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.override import OverrideScreen
from console.ui.screens.plan import PlanScreen
from console.ui.widgets.cause_list import CauseList
from console.ui.widgets.choices import OptionRow, SwitchRow
from plugins.partition_store import PartitionStore
from plugins.partition_store.backend import Options as PartitionOptions
from plugins.partition_store.schema import STATE_DDL
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition
from tests.patience import PATIENCE
from tests.ui.driving import NARROW, console, failures, filtered, items, opened, screen_text, until
from tests.ui.planning import choose, confirmed, fill, pace, plan_of, planned, switch_ids, turn_on
from tests.ui.world import NOON, TYPES, small_world, with_trail

TIMEOUTS = "condition:terminal error~timeout backend:analysis-queue"


def statuses(folder: Path) -> Counter[str]:
    with sqlite3.connect(folder / "analysis.db") as db:
        return Counter(status for (status,) in db.execute("SELECT status FROM async_tasks"))


async def test_enter_names_the_missing_field_and_goes_there(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path)) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        before, changes = statuses(tmp_path), screen.plan.changes  # type: ignore[union-attr]
        await pilot.press("up", "up", "up", "enter")
        await until(pilot, lambda: "✗ A reason is required." in screen_text(pilot))
        assert screen.query_one("#reason").has_focus
        await pilot.press(*"back", "enter")
        await until(pilot, lambda: f"✗ Type {changes}, the number of items that will change." in screen_text(pilot))
        assert screen.query_one("#count").has_focus
        await pilot.press("1", "enter")
        assert isinstance(pilot.app.screen, PlanScreen)
        assert statuses(tmp_path) == before


async def test_that_the_plan_is_being_made_is_said_only_until_it_is_there(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path)) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        go_on, propose = Event(), screen._propose

        def waits(*given: Any) -> Plan:
            go_on.wait(PATIENCE)
            return propose(*given)

        with patch.object(screen, "_propose", waits):
            screen.set_focus(screen.query_one("#attempts-row"))
            await pilot.press("right")
            await until(pilot, lambda: screen.planning)
            await pilot.press("enter")
            await until(pilot, lambda: "✗ The plan is still being made." in screen_text(pilot))
            go_on.set()
            await until(pilot, lambda: screen.plan is not None)
            await until(pilot, lambda: "The plan is still being made" not in screen_text(pilot))


@pytest.mark.parametrize("row", ["pace-row", "attempts-row", "include-row", "ticket", "reason"])
async def test_enter_confirms_from_any_field(tmp_path: Path, row: str) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        screen = await plan_of(pilot, "condition:terminal backend:analysis-queue", "A", "r")
        fill(screen, "the provider is back", str(screen.plan.changes))  # type: ignore[union-attr]
        await choose(pilot, screen, "pace", "now")
        screen.set_focus(screen.query_one(f"#{row}"))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen))


async def test_letters_never_choose_and_space_turns_a_switch(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        screen = await plan_of(pilot, "condition:terminal backend:analysis-queue", "A", "r")
        before = screen.plan
        included = screen.query_one("#include-row", SwitchRow)
        for row, how in ((screen.query_one("#pace-row"), "Use ← and → to choose"), (included, "Press space to switch")):
            screen.set_focus(row)
            await pilot.press(*"xynr1", "space", "a")  # the space stands between two words
            await until(pilot, lambda how=how: f"{how}, ↓ to get to the reason." in " ".join(screen_text(pilot).split()))
        assert not any(switch.on for switch in included.switches)
        await pilot.press("up", "down")
        assert screen.plan is before
        assert screen.query_one("#reason").value == ""  # type: ignore[attr-defined]
        await turn_on(pilot, screen, "include_unrecoverable")
        assert screen.plan.changes > before.changes  # type: ignore[union-attr]


async def test_a_canary_is_the_default_where_the_number_has_to_be_typed(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path)) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        assert screen.plan.pace == Canary(10)  # type: ignore[union-attr]
        assert "‹canary 10›" in screen_text(pilot)
        consequence = screen.query_one("#pace-row", OptionRow).consequence
        assert consequence == "10 first; the rest while at most 20\u2009% fail again"
        assert "10 first; the rest while" in screen_text(pilot)
        await pilot.press("escape")
        await pilot.press("u", "r")
        screen = await planned(pilot)
        assert screen.plan.changes == 1  # type: ignore[union-attr]
        assert screen.plan.pace == Now()  # type: ignore[union-attr]
        assert "canary" not in screen_text(pilot)


async def test_a_canary_is_the_default_too_where_a_switch_adds_the_first_items(tmp_path: Path) -> None:
    """With nothing to change no pace is offered, so none was chosen."""
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path)) as pilot:
        screen = await plan_of(pilot, "backend:analysis-queue condition:terminal recoverable:no", "A", "r")
        assert screen.plan.changes == 0  # type: ignore[union-attr]
        await turn_on(pilot, screen, "include_unrecoverable")
        await until(pilot, lambda: screen.plan is not None and screen.plan.changes > 10 and not screen.planning)
        assert screen.plan.pace == Canary(10)  # type: ignore[union-attr]
        assert "‹canary 10›" in screen_text(pilot)


async def test_options_are_moved_through_and_the_plan_is_made_again_in_place(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path)) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        first = screen.plan
        await choose(pilot, screen, "pace", "over 30m")
        assert str(screen.plan.pace) == "over 30m"  # type: ignore[union-attr]
        assert "spread over 30m 00s, one every 1 min" in screen_text(pilot)
        await choose(pilot, screen, "attempts", "reset")
        assert "counted from 0 again" in screen_text(pilot)
        assert screen.plan.id != first.id  # type: ignore[union-attr]
        assert console(pilot).session.trail is not None
        await pace(pilot, screen, "canary 3")
        screen.query_one("#custom-pace").value = "someday"  # type: ignore[attr-defined]
        await until(pilot, lambda: "Unknown pace 'someday'" in screen_text(pilot))
        fill(screen, "a reason", str(first.changes))  # type: ignore[union-attr]
        await pilot.press("enter")
        assert isinstance(pilot.app.screen, PlanScreen)


async def test_what_applies_is_offered_with_how_many_items_it_adds(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 60), tmp_path)) as pilot:
        screen = await plan_of(pilot, "condition:terminal error~malformed backend:analysis-queue", "A", "r")
        skipped = screen.plan.selected  # type: ignore[union-attr]
        assert screen.plan.changes == 0  # type: ignore[union-attr]
        assert f"[ ] unrecoverable ({skipped})" in screen_text(pilot)
        assert "Nothing to change." in screen_text(pilot)
        assert "Reason" not in screen_text(pilot)  # there is nothing to confirm
        await turn_on(pilot, screen, "include_unrecoverable")
        await until(pilot, lambda: f"[x] unrecoverable ({skipped})" in screen_text(pilot))
        assert screen.plan.changes == skipped  # type: ignore[union-attr]
        assert "Reason" in screen_text(pilot)
        await pilot.press("escape")
        screen = await plan_of(pilot, TIMEOUTS, "r")
        assert switch_ids(screen) == set()  # it would add nothing


async def test_a_reason_that_was_typed_is_kept_for_the_next_plan(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        await plan_of(pilot, TIMEOUTS, "r")
        await pilot.press(*"fixed", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))
        await pilot.press("r")
        screen = await planned(pilot)
        assert screen.query_one("#reason").value == "fixed"  # type: ignore[attr-defined]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen))
        await pilot.press("2")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("r")
        assert (await planned(pilot)).query_one("#reason").value == ""  # type: ignore[attr-defined]


async def test_items_are_a_table_with_named_columns(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 60), tmp_path)) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        await choose(pilot, screen, "attempts", "reset")
        lines = screen_text(pilot).splitlines()
        heading = next(n for n, line in enumerate(lines) if "status" in line and "attempts" in line and "task" not in line)
        assert "analysis-queue" in lines[heading]
        assert lines[heading].index("status") == lines[heading + 1].index("FAILED → PENDING")
        assert lines[heading].index("attempts") == lines[heading + 1].index("4 → 0")
        assert "03:12" not in lines[heading + 1].split("│")[0].rpartition("→")[2]  # a due time of now is "now"


def test_a_value_that_stays_is_shown_without_an_arrow() -> None:
    columns = ("status", "attempts")
    rows = [
        PlannedItem("queue", "a", {"status": "FAILED → PENDING"}, {"attempts": "4"}, columns),
        PlannedItem("queue", "b", {"attempts": "4 → 0"}, {"status": "PENDING"}, columns),
    ]
    lines = ["".join(cell.text for cell in line).split() for line in item_tables(rows, 60)]
    assert lines == [["queue", *columns], ["a", "FAILED", "→", "PENDING", "4"], ["b", "PENDING", "4", "→", "0"]]


async def test_all_of_a_plan_can_be_read_while_the_reason_is_written(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 60), tmp_path), size=NARROW) as pilot:
        await plan_of(pilot, "condition:terminal", "A", "r")
        await until(pilot, lambda: "pgdn " in screen_text(pilot))
        assert "FAILED → PENDING" not in screen_text(pilot)
        await pilot.press("w", "h", "y")
        await pilot.press(*["pagedown"] * 10)
        await until(pilot, lambda: "FAILED → PENDING" in screen_text(pilot) and "pgdn " not in screen_text(pilot))
        await pilot.press(*["pageup"] * 10)
        await until(pilot, lambda: "will be requeued" in screen_text(pilot))
        assert "why" in screen_text(pilot)


async def test_letters_in_the_confirm_field_are_named_as_they_are_typed(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path), size=NARROW) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        await pilot.press("w", "enter", "x")
        await until(pilot, lambda: f"✗ Type the number {screen.plan.changes} in Confirm." in screen_text(pilot))  # type: ignore[union-attr]
        await pilot.press("backspace", "7")
        await until(pilot, lambda: not screen.problem)


async def test_a_typed_reason_can_be_read_in_16_colours(tmp_path: Path) -> None:
    """The background of the focused field had the colour that a dark terminal gives the text."""
    async with opened(with_trail(small_world(tmp_path, 60, theme="ansi"), tmp_path)) as pilot:
        await plan_of(pilot, TIMEOUTS, "A", "r")
        await pilot.press("w", "h", "y")
        await until(pilot, lambda: "why" in screen_text(pilot))
        field = pilot.app.focused
        assert field is not None
        assert field.styles.color.ansi == -1  # the terminal's own, so the background has to be its own as well
        assert field.styles.background.is_transparent


async def test_a_plan_can_be_left_at_any_moment(tmp_path: Path, thorough: bool) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path), size=NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await until(pilot, lambda: items(pilot).item is not None)
        for n in range(0, 30, 1 if thorough else 6):
            await pilot.press("r")
            await until(pilot, lambda: isinstance(pilot.app.screen, PlanScreen))
            await pilot.pause(0.01 * n)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))


async def test_what_is_typed_after_tab_goes_into_the_next_field(tmp_path: Path) -> None:
    """However fast it is typed: a number meant for the confirmation must not land in the ticket."""
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path)) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        for key, character in [("w", "w"), ("tab", None), ("t", "t"), ("tab", None), ("7", "7")]:
            pilot.app.post_message(events.Key(key, character))  # all at once, nothing waits in between
        values = {"reason": "w", "ticket": "t", "count": "7"}
        await until(
            pilot, lambda: all(screen.query_one(f"#{name}").value == value for name, value in values.items())  # type: ignore[attr-defined]
        )


async def test_a_narrow_plan_names_the_cause_by_its_error_and_offers_the_command(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 120), tmp_path), NARROW) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one(CauseList).cause)
        error = telling_line(pilot.app.screen.query_one(CauseList).cause.sample)  # type: ignore[union-attr]
        await pilot.press("r")
        await planned(pilot)
        await until(pilot, lambda: error[:20] in screen_text(pilot).splitlines()[0])
        await until(pilot, lambda: "^y command" in screen_text(pilot).splitlines()[-1])


async def test_a_cause_is_planned_whole(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one("CauseList").causes)  # type: ignore[attr-defined]
        count = pilot.app.screen.query_one("CauseList").cause.count  # type: ignore[attr-defined]
        await pilot.press("r")
        screen = await planned(pilot)
        assert screen.plan.selected == count  # type: ignore[union-attr]


async def test_undoing_what_was_executed_opens_no_form(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    async with opened(given) as pilot:
        await failures(pilot)
        await filtered(pilot, TIMEOUTS)
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await confirmed(pilot, "the timeouts are over")
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            db.execute("UPDATE async_tasks SET status = 'DONE', updated_at = ? WHERE status = 'PENDING'", (NOON.isoformat(),))
        await pilot.press("z")
        await planned(pilot)
        text = screen_text(pilot)
        assert "Nothing to undo" in text.splitlines()[0]
        assert "Nothing to change." in text
        assert "Already picked up or changed." in text
        assert "can be confirmed until" not in text
        assert "Reason" not in text
        assert "enter" not in text.splitlines()[-1]


def partitions(folder: Path) -> PartitionStore:
    """One partition that has just failed, watched by our own validator."""
    partition = Partition("ads", "acme", "clicks", "2026-11-14")
    run = folder.joinpath("raw", *partition.segments, "run_id=2026-11-15T01:00:00.000Z")
    run.mkdir(parents=True)
    (run / PAYLOAD).write_text('{"n": 1}\n')
    (run / METADATA).write_text('{"record_count": 1}')
    with sqlite3.connect(folder / "state.db") as db:
        db.executescript(STATE_DDL)
        db.execute(
            "INSERT INTO partition_state (source, customer_id, query_name, logical_date, status, attempt_count, updated_at,"
            " error_message) VALUES (?, ?, ?, ?, 'failed', 1, ?, 'BAD: it broke')",
            (*partition, NOON.isoformat()),
        )
    options = PartitionOptions(url=f"sqlite:///{folder / 'state.db'}", raw_sink=str(folder / "raw"), validator=True)
    return PartitionStore.open("parts", options, PolicyOverride(), read_only=False, deadline=timedelta(seconds=5))


async def test_switches_of_a_plugin_are_offered_where_its_system_is_concerned(tmp_path: Path) -> None:
    given = small_world(tmp_path, 20)
    async with opened(with_trail(replace(given, entries=(*given.entries, partitions(tmp_path))), tmp_path)) as pilot:
        screen = await plan_of(pilot, "backend:parts", "r")
        assert switch_ids(screen) == {"force_pending", "respect_backoff"}  # nothing is terminal, so not the third
        assert not screen.query_one("#attempts-row", OptionRow).display  # its counter is never reset
        await turn_on(pilot, screen, "respect_backoff")
        assert "Run no item before" in screen_text(pilot)


async def test_the_command_of_a_plan_does_the_same(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 300), tmp_path)
    async with opened(given) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        await choose(pilot, screen, "pace", "now")
        await choose(pilot, screen, "attempts", "reset")
        await pilot.press("down", *"ok")
        await until(pilot, lambda: screen.query_one("#reason").value == "ok")  # type: ignore[attr-defined]
        await pilot.press("ctrl+y")
        command = pilot.app.clipboard
        changes = screen.plan.changes  # type: ignore[union-attr]
    config = tmp_path / "config.yaml"
    config.write_text(
        f"console: {{trail: 'sqlite:///{tmp_path}/cli/trail.db'}}\n"
        f"backends:\n  analysis-queue: {{plugin: sqlite_queue, url: 'sqlite:///{tmp_path}/analysis.db',"
        f" dialect: async_tasks, task_types: [{', '.join(TYPES)}]}}\n"
    )
    config.chmod(0o600)
    program, *words = shlex.split(command)
    assert program == "retriage"
    before = statuses(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "console", "--config", str(config), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert statuses(tmp_path)["PENDING"] - before["PENDING"] == changes


@pytest.mark.parametrize("size", [(60, 20), (40, 14), NARROW, (116, 30), (160, 50)])
async def test_every_field_can_be_reached_at_every_size(tmp_path: Path, size: tuple[int, int]) -> None:
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path), size=size) as pilot:
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        reached = set()
        for _ in screen._fields():
            await pilot.press("up")
            assert screen.focused is not None
            reached.add(screen.focused.id)
            await until(pilot, lambda: screen.can_view_entire(screen.focused))  # type: ignore[arg-type]
        assert reached == {"pace-row", "attempts-row", "reason", "ticket", "count"}


async def test_a_plan_that_is_closed_at_once_leaves_no_work_behind(tmp_path: Path) -> None:
    """The line of keys is written after the next layout, when the screen may be empty already."""
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        screen = await plan_of(pilot, "condition:terminal backend:analysis-queue", "A", "r")
        screen.dismiss()
        await until(pilot, lambda: not screen.children)
        screen._show_keys()
