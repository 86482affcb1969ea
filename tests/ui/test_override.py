"""From a mark to a changed row and its record: plan, confirm, run, trail, undo; and all of it refused when read-only."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from textual import events
from textual.pilot import Pilot
from textual.widgets import Button

from console.core.backend import Flag, Operation
from console.core.capabilities import offered_switches
from console.core.confirm import Confirmation
from console.core.operations import Operations
from console.core.override import OverrideState
from console.core.pace import Now
from console.core.plan import Matching
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.core.session import Session
from console.trail.anchor import AnchorLine
from console.ui.audit import Refusal
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.item import ItemScreen
from console.ui.screens.override import OverrideScreen
from console.ui.screens.override_live import LiveOverrideScreen
from console.ui.screens.plan import PlanScreen
from console.ui.screens.trail import TrailScreen
from console.ui.textual_workarounds import TextCheckbox
from plugins.partition_store import PartitionStore
from plugins.partition_store.backend import Options as PartitionOptions
from plugins.partition_store.schema import STATE_DDL
from plugins.partition_store.sink import METADATA, PAYLOAD, Partition
from plugins.workflow_steps import WorkflowSteps
from tests.ui.driving import NARROW, console, failures, filtered, items, opened, screen_text, toasts, until
from tests.ui.world import NOON, small_world, with_trail


def statuses(folder: Path) -> Counter[str]:
    with sqlite3.connect(folder / "analysis.db") as db:
        return Counter(status for (status,) in db.execute("SELECT status FROM async_tasks"))


async def planned(pilot: Pilot[None]) -> PlanScreen:
    await until(pilot, lambda: isinstance(pilot.app.screen, PlanScreen) and pilot.app.screen.plan)
    screen = pilot.app.screen
    assert isinstance(screen, PlanScreen)
    return screen


def fill(screen: PlanScreen, reason: str, count: str = "") -> None:
    screen.query_one("#reason").value = reason  # type: ignore[attr-defined]
    screen.query_one("#count").value = count  # type: ignore[attr-defined]


async def test_cancel_has_the_focus_and_changes_nothing(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await until(pilot, lambda: items(pilot).item is not None)
        before = statuses(tmp_path)
        await pilot.press("r")
        screen = await planned(pilot)
        assert screen.query_one("#cancel").has_focus
        assert screen.query_one("#confirm", Button).disabled
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))
        assert statuses(tmp_path) == before


async def test_marked_items_are_requeued_recorded_and_undone(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    async with opened(given) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await pilot.press("space", "space", "space", "r")
        screen = await planned(pilot)
        assert screen.plan.changes == 3  # type: ignore[union-attr]
        before = statuses(tmp_path)
        fill(screen, "the timeouts are over")
        await until(pilot, lambda: not screen.query_one("#confirm", Button).disabled)
        screen.query_one("#confirm", Button).press()
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveOverrideScreen) and "✓ finished" in screen_text(pilot))
        assert "3 of 3" in screen_text(pilot)
        after = statuses(tmp_path)
        assert after["PENDING"] - before["PENDING"] == 3 == before["FAILED"] - after["FAILED"]
        key = str(screen._selection.keys[0])  # type: ignore[union-attr]
        await pilot.press("g", *key, "enter")
        await until(pilot, lambda: "◆" in screen_text(pilot))
        await pilot.press("4")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, TrailScreen) and "the timeouts are over" in screen_text(pilot)
        )
        await pilot.press("v")
        await until(pilot, lambda: "✓ intact" in screen_text(pilot) and "records at 03:12:40Z" in screen_text(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen) and "requeued" in screen_text(pilot))
        await pilot.press("z")
        undo = await planned(pilot)
        fill(undo, "it was the wrong set")
        await until(pilot, lambda: not undo.query_one("#confirm", Button).disabled)
        undo.query_one("#confirm", Button).press()
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveOverrideScreen) and "✓ finished" in screen_text(pilot))
        assert statuses(tmp_path) == before


async def test_many_items_need_the_number_typed(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 300), tmp_path)
    async with opened(given) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("A", "r")
        screen = await planned(pilot)
        changes = screen.plan.changes  # type: ignore[union-attr]
        assert changes >= given.limits.confirm_from
        button = screen.query_one("#confirm", Button)
        fill(screen, "a reason")
        await pilot.pause()
        assert button.disabled
        fill(screen, "a reason", str(changes + 1))
        await pilot.pause()
        assert button.disabled
        screen.query_one("#count").focus()
        await pilot.press("enter")
        await until(pilot, lambda: f"✗ Type {changes}, the number of items that will change." in screen_text(pilot))
        fill(screen, "", str(changes))
        await pilot.press("enter")
        await until(pilot, lambda: "✗ A reason is required" in screen_text(pilot))
        assert screen.query_one("#reason").has_focus
        await pilot.press(*"disk", "space", *"is", "space", *"back")
        await until(pilot, lambda: not button.disabled)
        assert "is required" not in screen_text(pilot)
        screen.query_one("#count").focus()
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveOverrideScreen))
        await until(pilot, lambda: f"{changes} of {changes}" in screen_text(pilot))


async def test_a_plan_can_be_left_at_any_moment(tmp_path: Path, thorough: bool) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    async with opened(given, size=NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await until(pilot, lambda: items(pilot).item is not None)
        for n in range(0, 30, 1 if thorough else 6):
            await pilot.press("r")
            await until(pilot, lambda: isinstance(pilot.app.screen, PlanScreen))
            await asyncio.sleep(0.01 * n)
            await pilot.press("escape")
            await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))


async def test_all_that_is_told_of_a_plan_can_be_read_while_the_reason_is_written(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 60), tmp_path)
    async with opened(given, size=NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("A", "r")
        await planned(pilot)
        await until(pilot, lambda: "pgdn: " in screen_text(pilot))
        assert "FAILED → PENDING" not in screen_text(pilot)
        await pilot.press("w", "h", "y")
        await pilot.press(*["pagedown"] * 10)
        await until(pilot, lambda: "FAILED → PENDING" in screen_text(pilot) and "pgdn: " not in screen_text(pilot))
        await pilot.press(*["pageup"] * 10)
        await until(pilot, lambda: "will be requeued" in screen_text(pilot))
        assert "why" in screen_text(pilot)


async def test_attempts_and_pace_make_another_plan(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 60), tmp_path)
    async with opened(given) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~malformed backend:analysis-queue")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("r")
        screen = await planned(pilot)
        first = screen.plan
        assert first is not None
        assert first.changes == 0
        assert "not recoverable" in screen_text(pilot)
        screen.query_one("#include_unrecoverable").toggle()  # type: ignore[attr-defined]
        await until(pilot, lambda: screen.plan is not None and screen.plan.changes == 1)
        screen.query_one("#pace").value = "over 30m"  # type: ignore[attr-defined]
        await until(pilot, lambda: screen.plan is not None and str(screen.plan.pace) == "over 30m")
        assert "spread over 30m" in screen_text(pilot)
        screen.query_one("#pace").value = "someday"  # type: ignore[attr-defined]
        await until(pilot, lambda: "someday" in screen.problem or "is not a" in screen_text(pilot))
        assert screen.query_one("#confirm", Button).disabled


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


@pytest.mark.parametrize(
    ("where", "offered"),
    [("analysis-queue", {"reset", "include_unrecoverable"}), ("parts", {"include_terminal_partitions", "force_pending", "respect_backoff"})],
)
async def test_what_can_be_chosen_is_what_the_backends_concerned_offer(
    tmp_path: Path, where: str, offered: set[str]
) -> None:
    given = small_world(tmp_path, 60)
    given = replace(given, entries=(*given.entries, partitions(tmp_path)))
    async with opened(with_trail(given, tmp_path)) as pilot:
        await failures(pilot)
        await filtered(pilot, f"backend:{where}")
        await until(pilot, lambda: (item := items(pilot).item) is not None and item.key.backend == where)
        await pilot.press("r")
        screen = await planned(pilot)
        assert {box.id for box in screen.query(TextCheckbox)} == offered
        assert "--" not in screen_text(pilot)


async def test_a_plan_can_wait_for_the_backoff(tmp_path: Path) -> None:
    given = small_world(tmp_path, 20)
    async with opened(with_trail(replace(given, entries=(partitions(tmp_path),)), tmp_path)) as pilot:
        await failures(pilot)
        await pilot.press("r")
        screen = await planned(pilot)
        screen.query_one("#respect_backoff", TextCheckbox).toggle()
        await until(pilot, lambda: screen.plan is not None and Flag.RESPECT_BACKOFF in screen.plan.operation.flags)


async def test_a_cause_is_planned_whole(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    async with opened(given) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one("CauseList").causes)  # type: ignore[attr-defined]
        count = pilot.app.screen.query_one("CauseList").cause.count  # type: ignore[attr-defined]
        await pilot.press("r")
        screen = await planned(pilot)
        assert screen.plan.selected == count  # type: ignore[union-attr]


async def test_read_only_greys_says_why_and_writes_nothing(tmp_path: Path) -> None:
    def hashes() -> dict[str, str]:
        return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(tmp_path.glob("*.db*"))}

    given = with_trail(small_world(tmp_path, 60, read_only=True), tmp_path)
    before = hashes()
    async with opened(given) as pilot:
        screen = await failures(pilot)
        assert "READ-ONLY" in screen_text(pilot)
        assert screen.check_action("requeue", ()) is None
        await pilot.press("r")
        await until(pilot, lambda: "Requeue is not available: this console is read-only" in screen_text(pilot))
        await pilot.press("question_mark")
        await until(pilot, lambda: "not available: this console is read-only" in screen_text(pilot))
        await pilot.press("escape", "4")
        await until(pilot, lambda: isinstance(pilot.app.screen, TrailScreen))
    assert hashes() == before
    assert not (tmp_path / "state").exists()


async def test_a_greyed_key_says_why_wherever_it_was_moved_to(tmp_path: Path) -> None:
    given = small_world(tmp_path, 60, read_only=True, keymap={"failures.requeue": "+"})
    async with opened(with_trail(given, tmp_path)) as pilot:
        await failures(pilot)
        await pilot.press("plus")
        await until(pilot, lambda: "Requeue is not available: this console is read-only" in toasts(pilot))


async def test_quitting_in_the_middle_stops_after_the_chunk_and_the_next_start_offers_resume(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 3_000), tmp_path)
    async with opened(given) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("A", "r")
        screen = await planned(pilot)
        total = screen.plan.changes  # type: ignore[union-attr]
        fill(screen, "a canary first", str(total))
        screen.query_one("#pace").value = "canary 5"  # type: ignore[attr-defined]
        await until(pilot, lambda: screen.plan is not None and str(screen.plan.pace) == "canary 5")
        given.clock.sleep = lambda seconds: __import__("time").sleep(0.01)  # type: ignore[method-assign]
        await until(pilot, lambda: not screen.query_one("#confirm", Button).disabled)
        screen.query_one("#confirm", Button).press()
        await until(pilot, lambda: "Canary: 0 of 5 succeeded" in screen_text(pilot))
        text = screen_text(pilot)
        assert "waiting for the canary" in text
        assert "gives up at 03:27:40Z" in text  # a quarter of an hour from when it was requeued
        assert "per second" not in text
        assert "about" not in text
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and "▸ override" in screen_text(pilot))
        await pilot.press("1", "5")
        await until(pilot, lambda: "waiting for the canary" in screen_text(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "▸ override" in screen_text(pilot))
        await pilot.press("q")
        await until(pilot, lambda: "An override is running" in screen_text(pilot))
        await pilot.press("down", "enter")
    stopped = given.trail.overrides()[0]  # type: ignore[union-attr]
    assert stopped.state == "stopped"
    assert stopped.counts == {"applied": 5}
    async with opened(with_trail(given, tmp_path)) as pilot:
        await until(pilot, lambda: "1 override is not finished" in screen_text(pilot))
        assert console(pilot).live_overrides.latest is None


async def test_what_is_typed_after_tab_goes_into_the_next_field(tmp_path: Path) -> None:
    """However fast it is typed: a number meant for the confirmation must not land in the ticket."""
    async with opened(with_trail(small_world(tmp_path, 300), tmp_path)) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("A", "r")
        screen = await planned(pilot)
        screen.query_one("#reason").focus()
        await until(pilot, lambda: screen.query_one("#reason").has_focus)
        for key, character in [("w", "w"), ("tab", None), ("t", "t"), ("tab", None), ("7", "7")]:
            pilot.app.post_message(events.Key(key, character))  # all at once, nothing waits in between
        values = {"reason": "w", "ticket": "t", "count": "7"}
        await until(
            pilot, lambda: all(screen.query_one(f"#{name}").value == value for name, value in values.items())  # type: ignore[attr-defined]
        )


def _gone() -> str:
    """An owner that was a process of this machine, and is none any more."""
    toasts = subprocess.run(
        [sys.executable, "-c", "from console.trail.leases import owner_token; print(owner_token())"],
        capture_output=True, text=True, check=True,
    )
    return toasts.stdout.strip()


async def test_what_a_killed_console_left_is_told_at_once_and_resumed(tmp_path: Path) -> None:
    """Killed between two chunks: nothing is unresolved, and its lease is a second old."""
    given = with_trail(small_world(tmp_path, 300), tmp_path)
    operations, trail = given.operations, given.trail
    assert operations is not None
    assert trail is not None
    plan = operations.propose(Matching(Filter.parse("condition:terminal error~timeout")), Operation(), Now())
    trail.begin("killed", plan, Confirmation(given.who, given.origin, "it was urgent", plan.changes), _gone(), NOON)
    async with opened(with_trail(given, tmp_path)) as pilot:
        await until(pilot, lambda: "1 override is not finished" in screen_text(pilot))
        await pilot.press("4")
        await until(pilot, lambda: "! abandoned" in screen_text(pilot))
        await pilot.press("x")
        await until(pilot, lambda: trail.override("killed").state is OverrideState.FINISHED)
    assert trail.override("killed").counts == {"applied": plan.changes}


async def test_a_read_only_console_tells_what_was_left_and_offers_nothing(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 300), tmp_path)
    operations, trail = given.operations, given.trail
    assert operations is not None
    assert trail is not None
    plan = operations.propose(Matching(Filter.parse("condition:terminal error~timeout")), Operation(), Now())
    trail.begin("killed", plan, Confirmation(given.who, given.origin, "it was urgent", plan.changes), _gone(), NOON)
    async with opened(with_trail(replace(given, read_only=True), tmp_path)) as pilot:
        await until(pilot, lambda: "1 override is not finished. Press 4 for the Trail." in toasts(pilot))
        assert "resume" not in toasts(pilot)


async def test_a_record_edited_by_hand_is_named_in_full(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    operations = given.operations
    assert operations is not None
    plan = operations.propose(Matching(Filter.parse("condition:terminal error~timeout")), Operation(), Now())
    operations.carry_out(plan, Confirmation(given.who, given.origin, "as agreed", plan.changes))
    with sqlite3.connect(tmp_path / "state" / "trail.db") as db:
        for (trigger,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            db.execute(f'DROP TRIGGER "{trigger}"')
        db.execute("UPDATE record SET body = replace(body, 'as agreed', 'as ordered') WHERE seq = 2")
    async with opened(given, NARROW) as pilot:
        await pilot.press("4", "v")
        await until(pilot, lambda: "✗ broken at record 2" in screen_text(pilot))
        assert toasts(pilot) == (
            "The trail is broken at record 2: edited (its hash does not match). Do not rely on what follows it."
        )


async def test_a_tail_that_was_cut_is_found_by_the_anchors_of_the_config(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    carried_out(given, "condition:terminal error~timeout", "as agreed")
    (tmp_path / "anchors").write_text(f"{AnchorLine(99, 'f' * 64, NOON)}\n")
    async with opened(replace(given, anchor=str(tmp_path / "anchors")), NARROW) as pilot:
        await pilot.press("4", "v")
        await until(pilot, lambda: "✗ broken at record" in screen_text(pilot))


def carried_out(given: Session, filter: str, reason: str) -> str:
    """An override that somebody else has carried out meanwhile; its id."""
    operations = given.operations
    assert operations is not None
    plan = operations.propose(Matching(Filter.parse(filter)), Operation(), Now())
    return operations.carry_out(plan, Confirmation(given.who, given.origin, reason, plan.changes)).override_id


async def test_the_cursor_stays_on_its_override_when_another_comes(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    mine = carried_out(given, "condition:terminal error~timeout", "mine")
    async with opened(given) as pilot:
        await pilot.press("4")
        screen = pilot.app.screen
        assert isinstance(screen, TrailScreen)
        await until(pilot, lambda: len(screen.table.entries) == 1)
        given.clock.tick(timedelta(minutes=1))  # type: ignore[attr-defined]
        carried_out(given, "condition:terminal error~limit", "theirs")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: len(screen.table.entries) == 2)
        assert screen.table.cursor == 1
        await pilot.press("z")
        assert (await planned(pilot)).undoes == mine


async def test_the_cursor_stays_on_its_refusal(tmp_path: Path) -> None:
    refused = [Refusal(NOON, n, "Refused", "", "", "me") for n in range(3)]
    async with opened(with_trail(small_world(tmp_path, 20), tmp_path)) as pilot:
        await pilot.press("4")
        screen = pilot.app.screen
        assert isinstance(screen, TrailScreen)
        screen.table.entries = refused[:2]
        screen.table.cursor = 1
        screen.table.entries = [refused[2], *refused[:2]]
        assert screen.table.entry == refused[1]
        screen.table.entries = refused[:1]
        assert screen.table.entry == refused[0]


async def test_the_trail_is_read_when_it_is_shown(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    async with opened(given) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: "No overrides yet" in screen_text(pilot))
        await pilot.press("1")
        carried_out(given, "condition:terminal error~timeout", "meanwhile")
        await pilot.press("4")
        await until(pilot, lambda: "meanwhile" in screen_text(pilot))


async def confirmed(pilot: Pilot[None], reason: str) -> None:
    """What is under the cursor, planned and carried out."""
    await pilot.press("r")
    screen = await planned(pilot)
    fill(screen, reason)
    await until(pilot, lambda: not screen.query_one("#confirm", Button).disabled)
    screen.query_one("#confirm", Button).press()
    await until(pilot, lambda: isinstance(pilot.app.screen, LiveOverrideScreen) and "✓ finished" in screen_text(pilot))


async def test_there_is_one_run_screen_however_often_it_is_asked_for(tmp_path: Path) -> None:
    def runs() -> int:
        return sum(isinstance(screen, LiveOverrideScreen) for screen in pilot.app.screen_stack)

    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await confirmed(pilot, "the first")
        await pilot.press("5", "5")
        assert runs() == 1
        await pilot.press("g", *"analysis-queue/task-00011", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("5")
        await until(pilot, lambda: isinstance(pilot.app.screen, LiveOverrideScreen))
        assert runs() == 1
        await pilot.press("g", *"analysis-queue/task-00011", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await confirmed(pilot, "the second")
        assert runs() == 1
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))


class Killed(BaseException):
    """The process ends here."""


def left_unresolved(given: Session, filter: str) -> None:
    """An override whose process was killed between an intent and its write, long ago."""

    def reach(point: str) -> None:
        if point == "before_write":
            raise Killed

    assert given.trail is not None
    backends = {backend.name: backend for backend in given.backends}
    operations = Operations(backends, given.trail, given.clock, limits=given.limits, reach=reach)
    plan = operations.propose(Matching(Filter.parse(filter)), Operation(), Now())
    with pytest.raises(Killed):
        operations.carry_out(plan, Confirmation(given.who, given.origin, "in haste", plan.changes))
    given.clock.tick(timedelta(minutes=5))  # type: ignore[attr-defined]


async def test_the_line_of_the_trail_tells_what_is_open_now_and_keeps_what_was_proved(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    left_unresolved(given, "condition:terminal error~timeout")
    async with opened(given, NARROW) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: "! 1 unresolved x resumes it" in screen_text(pilot))
        await pilot.press("v")
        await until(pilot, lambda: "✓ intact" in screen_text(pilot))
        assert "! 1 unresolved" in screen_text(pilot)
        carried_out(given, "condition:terminal error~limit", "meanwhile")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "2 overrides" in screen_text(pilot))
        assert "at 03:17:40Z" in screen_text(pilot)
        assert given.operations is not None
        assert given.operations.settle_unresolved(given.who, given.origin)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "unresolved" not in screen_text(pilot))
        assert "✓ intact" in screen_text(pilot)


@pytest.mark.parametrize(("size", "lines"), [(NARROW, 4), ((96, 24), 3)])
async def test_every_switch_can_be_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], lines: int
) -> None:
    offered = {"reset": "reset attempts", **{switch.id: switch.label for switch in offered_switches([PartitionStore, WorkflowSteps]).values()}}
    monkeypatch.setattr(
        PlanScreen, "_switches", lambda _: [TextCheckbox(name, id=id, compact=True) for id, name in offered.items()]
    )
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path), size) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("A", "r")
        screen = await planned(pilot)
        await until(pilot, lambda: "type" in screen_text(pilot))
        text = screen_text(pilot)
        assert all(f"[ ] {name}" in text for name in offered.values())
        assert len({box.region.y for box in screen.query(TextCheckbox)}) == lines
        assert "Reason" in text
        assert "Ticket" in text
        assert "Cancel" in text
