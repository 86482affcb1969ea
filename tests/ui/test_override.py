"""From a mark to a changed row and its record: plan, confirm, run, trail, undo; and all of it refused when read-only."""

from __future__ import annotations

import hashlib
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.backend import Operation
from console.core.canary import CanaryProgress
from console.core.confirm import Confirmation
from console.core.executor import Progress
from console.core.faults import NotConfirmed
from console.core.operations import Operations
from console.core.override import Override, OverrideState
from console.core.pace import Now
from console.core.plan import Matching
from console.core.query import Filter
from console.core.recovery import Result, ResultCounts
from console.core.session import Session
from console.core.watch import WatchProgress
from console.trail.anchor import AnchorLine
from console.ui.audit import Refusal
from console.ui.live_overrides import FollowedOverride
from console.ui.override_view import Figure, OverrideView, _bar_of
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.item import ItemScreen
from console.ui.screens.override import OverrideScreen
from console.ui.screens.trail import TrailScreen
from console.ui.widgets.top_bar import TopBar
from tests.ui.driving import NARROW, console, failures, filtered, items, opened, screen_text, toasts, until
from tests.ui.planning import confirm, confirmed, fill, pace, plan_of, planned
from tests.ui.world import NOON, HeldClock, small_world, with_trail


def statuses(folder: Path) -> Counter[str]:
    with sqlite3.connect(folder / "analysis.db") as db:
        return Counter(status for (status,) in db.execute("SELECT status FROM async_tasks"))


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
        await confirm(pilot, screen, "the timeouts are over")
        assert re.search(r"✓ requeued +3 ", screen_text(pilot))
        after = statuses(tmp_path)
        assert after["PENDING"] - before["PENDING"] == 3 == before["FAILED"] - after["FAILED"]
        key = str(screen._selection.keys[0])  # type: ignore[union-attr]
        await pilot.press("colon", *key, "enter")
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
        await confirm(pilot, undo, "it was the wrong set")
        assert statuses(tmp_path) == before
        await pilot.press("4")
        await until(pilot, lambda: "↶ undone" in screen_text(pilot))


def shown(override: Override, results: WatchProgress | None = None, *, running: bool = False) -> tuple[str, list[Figure], str]:
    """The headline, the figures and the facts."""
    followed = FollowedOverride(override=override, results=results, ended_clock=None if running else 0.0)
    view = OverrideView(followed, override, NOON, {}, {})
    lines = ("".join(cell.text for cell in line) for line in view.headline())
    return " ".join(lines), view.figures(), "\n".join("".join(cell.text for cell in line) for line in view.facts())


def an_override(action: str = "requeue", **results: int) -> Override:
    body = {"results": results, "causes": {}, "same_cause": 0, "complete": True}
    confirmed = {"action": action, "items": 60, "attempts": "keep", "pace": "now", "parts": [{"selected": 60}], "flags": ["as_resolved"]}
    return Override(
        "o1", "p1", OverrideState.FINISHED, NOON, "ann", "why", None, {"applied": 60}, confirmed=confirmed, result=body if results else None
    )


def test_items_that_were_not_read_yet_are_counted() -> None:
    counts = ResultCounts(Counter({Result.RECOVERED: 9, Result.NOT_RUN_YET: 1}))
    progress = WatchProgress("o1", counts, unread=50, open=51, last_due_at=NOON + timedelta(minutes=9))
    headline, figures, facts = shown(an_override(), progress)
    assert "9 of 10 recovered, 1 not run yet, 50 not read yet" in headline
    assert {figure.label: (figure.items, figure.share) for figure in figures if figure.share < 1} == {
        "recovered": (9, 0.15), "failed again": (0, 0.0), "not run yet": (1, 1 / 60), "not read yet": (50, 50 / 60)
    }
    assert "the last item runs then" in facts
    assert "the last item runs then" not in shown(an_override(), progress, running=True)[2], "more is written later"


@pytest.mark.parametrize(("results", "sign"), [
    ({"recovered": 60}, "✓"), ({"recovered": 50, "changed_by_others": 10}, "✓"), ({"recovered": 59, "failed_again": 1}, "✗"),
    ({"not_run_yet": 60}, "?"), ({"recovered": 59, "not_known": 1}, "?"),
])
def test_only_what_has_recovered_is_called_good(results: dict[str, int], sign: str) -> None:
    assert shown(an_override(**results))[0].startswith(f"{sign} ")


@pytest.mark.parametrize(("causes", "words"), [
    ({"aaaa1111": 6}, "6 failed again: ERR_CARD: declined"),
    ({"aaaa1111": 2, "bbbb2222": 4}, "6 failed again: 4 × cause bbbb2222; 2 × ERR_CARD: declined"),
    ({"aaaa1111": 3, "bbbb2222": 2, "cccc3333": 1}, "3 × ERR_CARD: declined; 2 × cause bbbb2222; 1 × other errors"),
    ({"aaaa1111": 5}, "6 failed again: 5 × ERR_CARD: declined"),
])
def test_the_headline_names_the_errors_with_which_items_failed_again(causes: dict[str, int], words: str) -> None:
    """One error is not given for all of them, and a rare one that has been seen not for a frequent one that has not."""
    counts = ResultCounts(Counter({Result.RECOVERED: 54, Result.FAILED_AGAIN: 6}), 0, Counter(causes), {"aaaa1111": "ERR_CARD: declined"})
    assert words in shown(an_override(), WatchProgress("o1", counts, unread=0, open=0, over=True))[0]


def test_the_note_of_a_pace_is_left_out_once_no_item_waits() -> None:
    note = "The last item runs at 2026-11-19T02:25:55Z."
    assert note in shown(replace(an_override(recovered=59, not_run_yet=1), note=note))[0]
    assert note not in shown(replace(an_override(recovered=59, failed_again=1), note=note))[0]


def test_what_nobody_has_watched_is_called_written() -> None:
    assert shown(an_override())[0] == "✓ Written   enter shows the results"
    assert shown(an_override("discard"))[0] == "✓ Finished"


def test_a_discard_names_its_switches_and_no_pace() -> None:
    facts = shown(an_override("discard"))[2]
    assert re.search(r"switches +as resolved", facts)
    assert not re.search("attempts|pace", facts)


async def test_behind_failed_again_are_items_with_the_error_that_they_failed_with(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    async with opened(given) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await pilot.press("space", "space", "space", "r")
        await confirm(pilot, await planned(pilot), "the timeouts are over")
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            error = "ERR_CARD: the card was declined"
            change = "UPDATE async_tasks SET status = 'FAILED', last_error = ?, attempts = attempts + 1 WHERE status = 'PENDING'"
            assert db.execute(f"{change} AND last_error LIKE '%TIMEOUT%' AND updated_at > '2026-11-10T03:12'", [error]).rowcount == 3
        await until(pilot, lambda: "with another cause" in screen_text(pilot))
        await pilot.press("end", "enter")
        await until(pilot, lambda: "3 items" in screen_text(pilot))
        assert screen_text(pilot).count(error) == 3


async def test_a_result_on_record_names_the_error_once_a_list_has_shown_it(tmp_path: Path) -> None:
    """The record has only the signatures of the causes."""
    given = with_trail(small_world(tmp_path, 100), tmp_path)
    operations = given.operations
    assert operations is not None
    override = carried_out(given, "condition:terminal error~timeout backend:analysis-queue", "the timeouts are over")
    error = "ERR_CARD: the card was declined"
    with sqlite3.connect(tmp_path / "analysis.db") as db:
        change = "UPDATE async_tasks SET status = 'FAILED', last_error = ?, attempts = attempts + 1 WHERE status = 'PENDING'"
        db.execute(f"{change} AND last_error LIKE '%TIMEOUT%' AND updated_at > '2026-11-10T03:12'", [error])
    assert operations.follow(operations.watch(override)).complete
    async with opened(given, NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "error~ERR_CARD")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await pilot.press("4", "enter")
        await until(pilot, lambda: "failed again" in screen_text(pilot))
        assert f"failed again: {error}" in " ".join(screen_text(pilot).split())
        await pilot.press("end", "enter")
        await until(pilot, lambda: "10 items" in screen_text(pilot) and screen_text(pilot).count("ERR_CARD: the card was") == 10)


async def test_a_refusal_is_separated_from_its_detail(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 60), tmp_path)
    operations = given.operations
    assert operations is not None
    plan = operations.propose(Matching(Filter.parse("condition:terminal error~timeout")), Operation(), Now())
    with pytest.raises(NotConfirmed):
        operations.carry_out(plan, Confirmation(given.who, given.origin, "why", plan.changes + 1))
    async with opened(given) as pilot:
        await pilot.press("4")
        await until(pilot, lambda: "⊘ refused" in screen_text(pilot))
        assert "Not confirmed: " in screen_text(pilot)


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
        await pace(pilot, screen, "canary 5")
        fill(screen, "a canary first", str(total))
        await pilot.press("enter")
        await until(pilot, lambda: "○○○○○" in screen_text(pilot))
        text = screen_text(pilot)
        assert "Waiting for the canary" in text
        assert "gives up at 03:27:40Z" in text  # a quarter of an hour from when it was requeued
        assert "per second" not in text
        assert "about" not in text
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and "▸ override" in screen_text(pilot))
        await pilot.press("1", "5")
        await until(pilot, lambda: "Waiting for the canary" in screen_text(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: "▸ override" in screen_text(pilot))
        await pilot.press("q")
        await until(pilot, lambda: "An override is running" in screen_text(pilot))
        await pilot.press("right", "enter")
    stopped = given.trail.overrides()[0]  # type: ignore[union-attr]
    assert stopped.state == "stopped"
    assert stopped.counts == {"applied": 5}
    async with opened(with_trail(given, tmp_path)) as pilot:
        await until(pilot, lambda: "1 override is not finished" in screen_text(pilot))
        assert console(pilot).live_overrides.latest is None


def _gone() -> str:
    """An owner that was a process of this machine, and is none any more."""
    toasts = subprocess.run(
        [sys.executable, "-c", "from console.trail.leases import owner_token; print(owner_token())"],
        capture_output=True, text=True, check=True,
    )
    return toasts.stdout.strip()


async def test_a_stopped_canary_asks_before_it_is_resumed(tmp_path: Path) -> None:
    given = with_trail(small_world(tmp_path, 300), tmp_path)
    async with opened(given) as pilot:
        screen = await plan_of(pilot, "condition:terminal error~timeout backend:analysis-queue", "A", "r")
        await pace(pilot, screen, "canary 5")
        left = screen.plan.changes - 5  # type: ignore[union-attr]
        fill(screen, "a canary first", str(screen.plan.changes))  # type: ignore[union-attr]
        await pilot.press("enter")
        await until(pilot, lambda: "○○○○○" in screen_text(pilot))
        await pilot.press("x")
        await until(pilot, lambda: f"Stopped on request. {left} items were not touched." in screen_text(pilot))
        await until(pilot, lambda: "0 of 5 recovered, 5 not run yet" in screen_text(pilot))
        await pilot.press("p")
        await until(pilot, lambda: "Requeued so far: 0 of 5 recovered, 5 not run yet." in screen_text(pilot))
        await pilot.press("1", "enter")
        await until(pilot, lambda: f"✗ Type {left}, the number of items that are left." in screen_text(pilot))
        await pilot.press("backspace", *str(left), "enter")
        await until(pilot, lambda: "Waiting for the canary" in screen_text(pilot))
        assert statuses(tmp_path)["PENDING"] >= 10
        await pilot.press("x")
        await until(pilot, lambda: f"{left - 5} items were not touched." in screen_text(pilot))


async def test_what_a_killed_console_left_is_reported_at_once_and_resumed(tmp_path: Path) -> None:
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
        await pilot.press("p")
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


def test_the_bar_of_a_step_shows_what_recovered_and_what_failed_again() -> None:
    drawn = _bar_of(CanaryProgress(2, (10, 50), 50, 22, 3, 0, 1, 24))
    assert [(cell.text, cell.tone) for cell in drawn] == [("████", "good"), ("█", "error"), ("░░░░░", "muted")]
    drawn = _bar_of(CanaryProgress(2, (10, 50), 50, 49, 1, 0, 0, 0))
    assert [len(cell.text) for cell in drawn] == [9, 1, 0]


def test_a_step_that_is_over_keeps_what_became_of_it() -> None:
    progress = Progress("o1", 165, canary=CanaryProgress(2, (10, 50, 105), 50, 22, 3, 0, 1, 24))
    first = CanaryProgress(1, (10, 50, 105), 10, 9, 1, 0, 0, 0)
    for known, words in (({1: first}, "●●●●●●●●●✗  9 recovered · 1 failed again"), ({}, "●●●●●●●●●●  10 written")):
        followed = FollowedOverride(progress=progress, canary_steps=known)
        steps = ["".join(cell.text for cell in line) for line in OverrideView(followed, None, NOON, {}, {}).steps()]
        assert steps[0] == f" canary {words}"
        assert steps[1].endswith("22 recovered · 3 failed again · 1 running · 24 not run yet")


async def test_behind_requeued_is_what_became_of_each_item(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path), NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await pilot.press("space", "space", "r")
        await confirm(pilot, await planned(pilot), "the timeouts are over")
        await until(pilot, lambda: "not run yet" in screen_text(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "2 items" in screen_text(pilot))
        assert screen_text(pilot).count("○ not run yet") == 2
        assert pilot.app.screen.query_one(TopBar).place == "override"


def test_a_paused_override_does_not_go_on() -> None:
    paused = Progress("o1", 60, paused=True)
    view = OverrideView(FollowedOverride(progress=paused), an_override(), NOON, {}, {})
    assert ["".join(cell.text for cell in line) for line in view.headline()] == ["‖ Paused   p continues it"]


async def test_the_trail_says_what_became_of_the_items_so_far(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 100), tmp_path), NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await pilot.press("A")
        await confirmed(pilot, "the timeouts are over")
        await pilot.press("4")
        await until(pilot, lambda: "recovered, " in screen_text(pilot).splitlines()[2])
        assert "the timeouts" in screen_text(pilot).splitlines()[2]
        assert re.search(r"items +\d+ requeued · .*0 recovered · 0 failed again", screen_text(pilot))


async def test_the_ages_in_the_trail_are_those_of_now(tmp_path: Path) -> None:
    clock = HeldClock(NOON)
    async with opened(replace(with_trail(small_world(tmp_path, 20), tmp_path), clock=clock), NARROW) as pilot:
        await pilot.press("4")
        screen = pilot.app.screen
        assert isinstance(screen, TrailScreen)
        await until(pilot, lambda: "No overrides yet" in screen_text(pilot))  # read once, so not overwritten
        screen.table.entries = [Refusal(NOON, 1, "Refused", "", "", "me")]
        screen.show_list(filled=True, fault=None)
        for seconds, age in ((7, "7s"), (29, "36s"), (8, "44s")):
            clock.tick(timedelta(seconds=seconds))
            await until(pilot, lambda age=age: age in screen_text(pilot).splitlines()[2].split())  # type: ignore[misc]


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


async def test_there_is_one_run_screen_however_often_it_is_asked_for(tmp_path: Path) -> None:
    def runs() -> int:
        return sum(isinstance(screen, OverrideScreen) for screen in pilot.app.screen_stack)

    async with opened(with_trail(small_world(tmp_path, 100), tmp_path)) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout backend:analysis-queue")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await confirmed(pilot, "the first")
        await pilot.press("5", "5")
        assert runs() == 1
        await pilot.press("colon", *"analysis-queue/task-00011", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("5")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen))
        assert runs() == 1
        await pilot.press("colon", *"analysis-queue/task-00011", "enter")
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
        await until(pilot, lambda: "! 1 unresolved p resumes it" in screen_text(pilot))
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


