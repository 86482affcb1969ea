"""Overview, Groups, Item, help, palette, go to: each place does what it says."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from threading import Event

import pytest
from textual.keys import Keys, _character_to_key
from textual.pilot import Pilot

from console.actions.catalogue import CATALOGUE, EVERYWHERE, PLACES, actions_of
from console.actions.keymap import NAMED_KEYS, checked_keymap, textual_name
from console.actions.themes import THEMES
from console.core.backend import Count
from console.core.faults import ConfigFault, PluginFault
from console.core.item import Attempt, Condition, Detail, Item, ItemKey, Verdict
from console.core.session import Unavailable
from console.ui import themes
from console.ui.app import Console
from console.ui.health import Health
from console.ui.item_text import ItemText
from console.ui.palette import commands
from console.ui.screens.base import BaseScreen
from console.ui.screens.causes import CausesScreen
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.item import ItemScreen
from console.ui.screens.override import OverrideItemsScreen, OverrideScreen
from console.ui.screens.overview import OverviewScreen
from console.ui.screens.proposals import ProposalsScreen
from console.ui.screens.trail import TrailScreen
from console.ui.widgets.cause_list import CauseList
from console.ui.widgets.system_table import SystemTable, is_quiet
from console.ui.widgets.top_causes import TopCauses
from console.ui.widgets.upcoming_chart import UpcomingChart, storms
from tests.patience import PATIENCE
from tests.plugins.partition_store.stores import Store, part
from tests.ui.driving import NARROW, WIDE, console, failures, filtered, items, keys, opened, screen_text, toasts, until
from tests.ui.world import ERRORS, NOON, make_async, open_queue, session, small_world

SCREENS = {
    EVERYWHERE: Console,
    "overview": OverviewScreen,
    "failures": FailuresScreen,
    "causes": CausesScreen,
    "trail": TrailScreen,
    "proposals": ProposalsScreen,
    "item": ItemScreen,
    "override": OverrideScreen,
    "override_items": OverrideItemsScreen,
}


# -- the catalogue -----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", CATALOGUE, ids=lambda action: action.id)
def test_every_action_has_its_method_and_help(action) -> None:
    assert hasattr(SCREENS[action.place], f"action_{action.name}")
    assert action.help
    assert action.label


def test_a_keymap_is_checked() -> None:
    assert checked_keymap({"failures.requeue": "R", "app.help": "f1,?"}) == {
        "failures.requeue": "R",
        "app.help": "f1,question_mark",
    }
    with pytest.raises(ConfigFault, match=r"Did you mean 'failures.requeue'\?"):
        checked_keymap({"failures.reqeue": "r"})
    with pytest.raises(ConfigFault, match="unknown key"):
        checked_keymap({"failures.requeue": "ctrl+banana"})
    with pytest.raises(ConfigFault, match=r"used for failures\.sort"):
        checked_keymap({"failures.requeue": "s"})
    with pytest.raises(ConfigFault, match=r"failures\.requeue: .*j is already used for moving .*\(down\)"):
        checked_keymap({"failures.requeue": "j"})
    with pytest.raises(ConfigFault, match=r"ctrl\+p is already used for app\.palette"):
        checked_keymap({"app.tour": "ctrl+p"})


def test_an_unknown_theme_is_a_fault() -> None:
    with pytest.raises(ConfigFault, match="Unknown theme 'purple'"):
        themes.chosen("purple")


def test_the_themes_known_to_commands_are_those_of_the_console(tmp_path: Path) -> None:
    assert set(Console(lambda: small_world(tmp_path, 1)).available_themes) == THEMES


def test_the_keys_known_to_commands_are_those_of_textual() -> None:
    named = {key.value for key in Keys if key.value.isalnum()} - {"return"}  # no terminal sends it
    assert named == NAMED_KEYS


async def test_every_place_is_read_again_by_one_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Textual calls on_mount of every base class. A call of super() in a subclass would start a second clock."""
    begun: list[str] = []
    mounted = BaseScreen.on_mount
    monkeypatch.setattr(BaseScreen, "on_mount", lambda self: (begun.append(self.PLACE), mounted(self))[1])
    async with opened(small_world(tmp_path, 40)) as pilot:
        await failures(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("escape", "3", "4")
        await until(pilot, lambda: len(set(begun)) == 5)
    assert sorted(begun) == ["causes", "failures", "item", "overview", "trail"]


@pytest.mark.parametrize(
    ("written", "pressed"),
    [
        ("f3", "f3"),
        ("*", "*"),
        ("asterisk", "*"),
        ("semicolon", ";"),
        ("shift+b", "B"),
        ("ctrl+_", "ctrl+underscore"),
        ("shift+ctrl+left", "ctrl+shift+left"),
    ],
)
async def test_keys_can_be_moved(tmp_path: Path, written: str, pressed: str) -> None:
    async with opened(small_world(tmp_path, 20, keymap={"app.causes": written})) as pilot:
        await pilot.press(pressed)
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen))


async def test_sentences_name_the_keys_of_the_keymap(tmp_path: Path) -> None:
    given = small_world(tmp_path, 20, keymap={"app.quit": "f9", "failures.requeue": "f10", "failures.filter": "f7"})
    async with opened(given) as pilot:
        await pilot.press("escape")
        await until(pilot, lambda: "There is nothing to go back to. Press f9 to quit." in toasts(pilot))
        await pilot.press("ctrl+c")
        await until(pilot, lambda: "Press f9 to quit, or y to copy" in toasts(pilot))
        await pilot.press("5")
        await until(pilot, lambda: "Press f10 on an item to plan one." in toasts(pilot))
        await pilot.press("2", "f7", *"type:nothing", "enter")
        await until(pilot, lambda: "Press f7 to change the filter." in screen_text(pilot))


def test_a_character_is_the_key_textual_takes_it_for() -> None:
    for character in filter(str.isprintable, map(chr, range(0x3000))):
        assert textual_name(character) == _character_to_key(character)
    sent = {key.value for key in Keys} - {"return", "ctrl-at"}  # which no terminal sends
    assert [key for key in sent if not key.startswith("<") and textual_name(key) != key] == []


@pytest.mark.parametrize("key", ["shift+1", "ctrl+R", "ctrl+", "+r", "ctrl+ctrl+r", "low_line", ""])
def test_a_key_that_no_terminal_sends_is_refused(key: str) -> None:
    with pytest.raises(ConfigFault, match=f"unknown key '{re.escape(key)}'"):
        checked_keymap({"app.causes": key})


def test_two_names_of_one_key_clash() -> None:
    with pytest.raises(ConfigFault, match=r"colon is already used for failures\.requeue"):
        checked_keymap({"failures.sort": ":", "failures.requeue": "colon"})


@pytest.mark.parametrize("theme", ["retriage-day", "ansi", "textual-light", "nord"])
async def test_themes(tmp_path: Path, theme: str) -> None:
    async with opened(small_world(tmp_path, 20, theme=theme)) as pilot:
        await failures(pilot)
        assert "retrying" in screen_text(pilot)


async def test_without_colour_everything_is_still_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with opened(small_world(tmp_path, 20)) as pilot:
        await failures(pilot)
        await pilot.press("space")
        text = screen_text(pilot)
        assert "↻ retrying" in text
        assert "● 1 marked" in text


# -- overview ----------------------------------------------------------------------------------------


async def test_overview_in_a_tiny_terminal_cuts_lines_and_keeps_its_numbers(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100), (60, 15)) as pilot:
        await until(pilot, lambda: " due" in screen_text(pilot) and "malformed" in screen_text(pilot))
        text = screen_text(pilot)
        assert "analysis" in text
        assert "retries, next hour" in text
        assert all(len(line) <= 60 for line in text.splitlines())


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_overview_has_one_line_per_system_the_worst_first(tmp_path: Path, size: tuple[int, int]) -> None:
    given = small_world(tmp_path, 100)
    lost = Unavailable("lost", "nosuch", PluginFault("no such plugin is installed", where="nosuch"))
    gone = open_queue(tmp_path / "missing.db", "gone")
    given = session([*given.backends, gone, lost], given.clock)
    async with opened(given, size) as pilot:
        healths = console(pilot).monitor.healths
        await until(
            pilot, lambda: healths["jobs"].recent and healths["analysis-queue"].recent and healths["gone"].fault
        )
        await until(pilot, lambda: "2 down" in screen_text(pilot) and " 40 " in screen_text(pilot))
        lines = screen_text(pilot).splitlines()
        names = [line.strip(" ✗").split()[0] for line in lines[2:6]]
        assert sorted(names[:2]) == ["gone", "lost"]
        assert [name[:8] for name in names[2:]] == ["analysis", "jobs"]
        assert lines[1].split()[0] == "system"
        assert {"40", "30"} <= set(lines[4].split())  # terminal and retrying
        if size == WIDE:
            assert "there is no such file" in screen_text(pilot)
            assert "no such plugin is installed" in screen_text(pilot)
        await pilot.press("t")
        await until(pilot, lambda: "retries, next day" in screen_text(pilot))
        await pilot.press("down", "down", "down", "enter")
        await until(
            pilot,
            lambda: isinstance(pilot.app.screen, FailuresScreen) and str(pilot.app.screen.filter) == "backend:jobs",
        )


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_overview_warns_of_what_is_deleted_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]) -> None:
    left = {"jobs": Count(12), "analysis-queue": Count(0)}
    monkeypatch.setattr("console.sql.backend.SqlBackend.expiring", lambda self, now, within: left.get(self.name))
    async with opened(small_world(tmp_path, 100), size) as pilot:
        await until(pilot, lambda: "⚠ Deleted within a day: 12 in jobs. Filter: expires<1d" in screen_text(pilot))
        assert "retries, next hour" in screen_text(pilot)
        left["jobs"] = Count(0)
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "Deleted within" not in screen_text(pilot))


async def test_overview_opens_a_cause_and_escape_returns(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100), NARROW) as pilot:
        await until(pilot, lambda: pilot.app.screen.query_one(TopCauses).causes)
        overview = pilot.app.screen
        cause = overview.query_one(TopCauses).causes[0]
        await pilot.press("tab", "enter")
        await until(
            pilot,
            lambda: isinstance(pilot.app.screen, FailuresScreen)
            and str(pilot.app.screen.filter) == f"cause:{cause.signature}",
        )
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is overview)


async def test_systems_without_room_are_one_line_and_can_be_listed(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 20)
    make_async(tmp_path / "quiet.db", 0)
    busy = open_queue(tmp_path / "a.db", "busy")
    quiet = [open_queue(tmp_path / "quiet.db", f"quiet-{n:02}") for n in range(20)]
    async with opened(session([*quiet, busy]), NARROW) as pilot:
        await until(pilot, lambda: "+12 quiet" in screen_text(pilot))
        assert screen_text(pilot).splitlines()[2].lstrip("▌ ").startswith("busy ")  # the last of the config
        await pilot.press("end", "enter")
        await until(pilot, lambda: "+12 quiet" not in screen_text(pilot))
        await pilot.press("end")
        assert pilot.app.screen.query_one(SystemTable).health.name.startswith("quiet")  # type: ignore[union-attr]


def test_a_system_that_was_not_counted_yet_is_not_quiet() -> None:
    assert not is_quiet(Health("a", answered=True))
    assert is_quiet(Health("a", answered=True, counts={Condition.FAILED: Count(0, True)}))
    assert not is_quiet(Health("a", answered=True, counts={Condition.FAILED: Count(1, True)}))


async def test_an_error_that_check_finds_is_beside_its_system_wherever_the_cursor_is(tmp_path: Path) -> None:
    """A success without its run fails nothing, so nothing else on this screen would point at it."""
    store = Store(tmp_path / "etl")
    store.put(part(), "success", current_run_id="nowhere")
    make_async(tmp_path / "a.db", 20)
    systems = [open_queue(tmp_path / "a.db", "busy"), store.open()]
    async with opened(session(systems)) as pilot:
        await until(pilot, lambda: "invariant: 1 of the newest 1 partitions" in screen_text(pilot))
        rows = screen_text(pilot).splitlines()[2:4]
        assert [row.lstrip("▌ ").split()[0] for row in rows] == ["parts", "busy"]
        assert "⚠ live" in rows[0]
    async with opened(session([open_queue(tmp_path / "a.db", "busy"), store.open()]), NARROW) as pilot:
        await until(pilot, lambda: "⚠ live" in screen_text(pilot))


async def test_causes_are_counted_at_once_though_a_system_is_down(tmp_path: Path) -> None:
    small = small_world(tmp_path, 60)
    given = session([*small.backends, open_queue(tmp_path / "missing.db", "gone")], small.clock, refresh=timedelta(hours=1))
    async with opened(given) as pilot:
        await until(pilot, lambda: pilot.app.screen.query_one(TopCauses).causes)


async def test_causes_of_a_system_whose_counts_come_late_are_counted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = small_world(tmp_path, 60, refresh=timedelta(hours=1))
    late, may_count = given.backends[0], Event()

    def counts(*asked: object) -> object:
        assert may_count.wait(PATIENCE)
        return type(late).counts(late, *asked)  # type: ignore[arg-type]

    monkeypatch.setattr(late, "counts", counts)
    monkeypatch.setattr("console.ui.screens.overview.HOLD_LIMIT", None)  # no read is given up on a busy machine
    async with opened(given) as pilot:

        def systems() -> set[tuple[str, ...]]:
            causes = pilot.app.screen.query_one(TopCauses).causes
            return {tuple(name for name, _ in cause.backends) for cause in causes}

        await until(pilot, lambda: systems() == {("jobs",)})
        may_count.set()
        await until(pilot, lambda: systems() == {("analysis-queue", "jobs"), ("analysis-queue",), ("jobs",)})


async def test_a_storm_is_seen(tmp_path: Path) -> None:
    make_async(tmp_path / "a.db", 0)
    with sqlite3.connect(tmp_path / "a.db") as db:
        for n in range(60):
            due = NOON + timedelta(minutes=20, seconds=n / 2) if n < 40 else NOON + timedelta(minutes=n)
            db.execute(
                "INSERT INTO async_tasks VALUES (?,?,?,?,?,?,?,?,?)",
                (f"t{n}", "T", "e", "PENDING", 1, due.isoformat(), "boom", NOON.isoformat(), NOON.isoformat()),
            )
    async with opened(session([open_queue(tmp_path / "a.db", "q")])) as pilot:
        await until(pilot, lambda: "▲ storm" in screen_text(pilot))
        assert "peak 40 in 20m" in screen_text(pilot)
        assert pilot.app.screen.query_one(UpcomingChart).day is False
    assert storms([1] * 60) == set()


async def test_retries_of_a_system_that_was_not_read_yet_are_missing_from_the_number(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        healths = console(pilot).monitor.healths
        await until(pilot, lambda: all(health.soon for health in healths.values()))
        chart = pilot.app.screen.query_one(UpcomingChart)
        await until(pilot, lambda: re.search(r"next hour   \d+ due", screen_text(pilot)))
        chart.healths = {**healths, "jobs": replace(healths["jobs"], soon=None)}
        shown = chart.render().plain  # at once: the next refresh shows the healths as they are
        assert re.search(r"next hour   ≥ \d+ due", shown)


async def test_no_backends_is_a_welcome(tmp_path: Path) -> None:
    async with opened(session([], config="/etc/retriage.yaml"), NARROW) as pilot:
        await until(pilot, lambda: "No systems are configured yet" in screen_text(pilot))
        assert "retriage demo" in screen_text(pilot)
        assert "/etc/retriage.yaml" in screen_text(pilot)


# -- causes ------------------------------------------------------------------------------------------


async def test_groups_count_and_narrow(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one(CauseList).causes)
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: not screen._busy)
        cause = screen.table.cause
        assert cause is not None
        assert "✓ yes" in screen_text(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and items(pilot).complete)
        table = items(pilot)
        await until(pilot, lambda: table.total() == cause.count)
        assert {table.item_at(row).signature for row in range(table.total())} == {cause.signature}  # type: ignore[union-attr]
        assert "scanned" in screen_text(pilot)


async def test_a_preview_that_is_read_while_the_console_closes_is_no_crash(tmp_path: Path) -> None:
    """It looks for its cause in the list of causes, which may be gone already."""
    async with opened(small_world(tmp_path, 20)) as pilot:
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: screen.table.causes and not screen._busy)
        signature = screen.table.causes[0].signature
        assert signature in console(pilot).errors_seen()
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))
        await screen.table.remove()
        assert console(pilot).life_of(str(signature)) is None
        console(pilot).errors_seen()


async def test_groups_are_read_again_at_once_when_asked(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100)) as pilot:
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: screen.table.causes and not screen._busy)
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            db.execute("UPDATE async_tasks SET last_error = 'a new cause' WHERE status = 'FAILED'")
        await pilot.press("ctrl+r")
        await until(pilot, lambda: "a new cause" in screen_text(pilot))


async def test_a_group_has_its_runbook(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 100)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: pilot.app.screen.query_one(CauseList).causes)
        table = pilot.app.screen.query_one(CauseList)
        table.cursor = next(n for n, g in enumerate(table.causes) if "rate limit" in g.sample)
        await until(pilot, lambda: "https://wiki.example/runbooks/rate-limit" in screen_text(pilot))
        await pilot.press("o")
        assert console(pilot).clipboard == "https://wiki.example/runbooks/rate-limit"
        await pilot.press("y")
        assert console(pilot).clipboard == table.cause.sample  # type: ignore[union-attr]


async def test_the_cursor_stays_on_the_group_without_an_error(tmp_path: Path) -> None:
    """Failures without error text have no signature, but are a row of the list."""
    async with opened(small_world(tmp_path, 20)) as pilot:
        await pilot.press("3")
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        await until(pilot, lambda: screen.table.causes and not screen._busy)
        table, cause = screen.table, screen.table.causes[0]
        silent = replace(cause, signature=None, sample="")
        table.causes = [silent, cause]
        table.cursor = 0
        table.causes = [*(replace(cause, signature=f"{n:016x}") for n in range(80)), silent]
        assert table.cause == silent
        await until(pilot, lambda: "no error text" in screen_text(pilot))


# -- item --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [NARROW, WIDE])
async def test_an_item_tells_all(tmp_path: Path, size: tuple[int, int]) -> None:
    async with opened(small_world(tmp_path, 60), size) as pilot:
        screen = await opened_item(pilot, "condition:retrying")
        text = screen_text(pilot)
        assert "runs again automatically" in text
        assert "Next" in text
        assert "History" in text or size == NARROW  # further down
        error = screen._detail.error  # type: ignore[union-attr]
        assert text.count(error[:30]) == (2 if size == WIDE else 1)  # wide, the native row has it too
        await pilot.press("slash", *"attempt", "enter")
        await until(pilot, lambda: "lines contain attempt" in screen_text(pilot))
        await pilot.press("n", "N", "escape", "y")
        assert console(pilot).clipboard == error
        await pilot.press("Y")
        assert console(pilot).clipboard == str(screen._item.key)
        await pilot.press("l", "l")
        await until(pilot, lambda: "next_run_at" in screen_text(pilot))
        await pilot.press("right")
        await until(pilot, lambda: "There is no trail." in screen_text(pilot))
        await pilot.press("h", "h", "h")
        await until(pilot, lambda: "runs again automatically" in screen_text(pilot))
        await pilot.press("C")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and "cause:" in str(pilot.app.screen.filter)
        )


async def opened_item(pilot: Pilot[None], filter: str) -> ItemScreen:
    """The first item that matches, on its screen and read."""
    await failures(pilot)
    await filtered(pilot, filter)
    await until(pilot, lambda: items(pilot).item is not None)
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen) and pilot.app.screen._detail)
    screen = pilot.app.screen
    assert isinstance(screen, ItemScreen)
    return screen


async def test_the_next_and_the_previous_item_of_the_list(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        screen = await opened_item(pilot, "condition:terminal")
        first = screen._item.key
        await pilot.press("]")
        await until(pilot, lambda: screen._detail is not None and screen._detail.item.key != first)
        assert str(screen._item.key) in screen_text(pilot)
        await pilot.press("J", "K", "[")
        await until(pilot, lambda: screen._detail is not None and screen._detail.item.key == first)
        await pilot.press("[")
        await until(pilot, lambda: "This is the first item of the list." in toasts(pilot))
        await pilot.press("]", "escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))
        assert items(pilot).cursor == 1  # the list has followed


async def test_equal_errors_are_shown_once() -> None:
    def attempt(number: int, error: str | None) -> Attempt:
        return Attempt(number, NOON - timedelta(hours=9 - number), "failed" if error else "waiting", error)

    item = Item(ItemKey("q", ("1",)), "t", "failed", 3, 3, Verdict(Condition.TERMINAL, "why"), "new: boom", None, None, NOON)
    attempts = (attempt(0, "old: crash"), attempt(1, None), attempt(2, "old: crash"), attempt(3, "new: boom"))
    lines = [
        "".join(cell.text for cell in line)
        for line in ItemText(item, Detail(item, "new: boom", attempts), (), NOON).history()
    ]
    assert lines == [
        "  ● 3  failed  2026-11-15 21:12:40 · 6h ago",
        "  ● 2  failed  2026-11-15 20:12:40 · 7h ago", "  │ old: crash",
        "  ● 1  waiting  2026-11-15 19:12:40 · 8h ago",
        "  ● 0  failed  2026-11-15 18:12:40 · 9h ago",
    ]


async def test_an_item_that_is_gone_says_so(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        await failures(pilot)
        key = items(pilot).item.key  # type: ignore[union-attr]
        with sqlite3.connect(tmp_path / "analysis.db") as db:
            db.execute("DELETE FROM async_tasks WHERE task_id = ?", key.parts)
        await pilot.press("enter")
        await until(pilot, lambda: "No such item" in screen_text(pilot))


# -- everywhere --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("key", "place"), [("1", "overview"), ("2", "failures"), ("3", "causes"), ("4", "trail")])
async def test_help_is_the_catalogue(tmp_path: Path, key: str, place: str) -> None:
    async with opened(small_world(tmp_path, 30), (120, 60)) as pilot:
        await pilot.press(key, "question_mark")
        await until(pilot, lambda: f"Keys in {PLACES[place]}" in screen_text(pilot))
        text = screen_text(pilot)
        assert all(action.help[:40] in text for action in (*actions_of(place), *actions_of(EVERYWHERE)))
        await pilot.press("escape")
        await until(pilot, lambda: "Keys in" not in screen_text(pilot))


async def test_a_key_leads_to_its_place_whatever_lies_on_it(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        listed = await failures(pilot)
        for keys_back in (["2"], ["1", "2"], ["colon", *"failures", "enter"], ["1", "ctrl+g", *"failures", "enter"]):
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
            await pilot.press(*keys_back)
            await until(pilot, lambda: pilot.app.screen is listed)
        for typed in (["2"], ["colon", *"failures", "enter"]):
            listed.table.cursor = 0
            await pilot.press("enter", *typed, "down")
            assert listed.table.cursor == 1  # what is typed after it is meant for where it leads


async def test_go_to_an_item_by_its_key(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        await pilot.press("colon", *"analysis-queue/task-00003", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("escape", "ctrl+g", *"nonsense", "enter")
        await until(pilot, lambda: "Not an item key" in screen_text(pilot))
        await pilot.press("colon", *"storms", "enter")
        await until(
            pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and "next<15m" in str(pilot.app.screen.filter)
        )


async def test_the_palette_has_every_action_of_the_place(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        await failures(pilot)
        offered = {choice.title: choice for choice in commands(console(pilot))}
        assert {"Filter", "Sort", "Views", "Help", "Quit", "Trail: Verify", "Theme: nord"} <= set(offered)
        assert offered["Views"].key == "f"  # the key beside each command
        assert offered["Requeue"].why_not == "Requeue is not available: there is no trail to record it in"
        await pilot.press("ctrl+p", *"requeue", "enter")
        await until(pilot, lambda: "no trail to record it in" in toasts(pilot))
        await pilot.press("escape", "ctrl+p", *"causes", "enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen))
        offered = {choice.title: choice for choice in commands(console(pilot))}
        assert offered["Failures: Requeue"].why_not == "Press 2 for Failures, then r."
        await pilot.press("ctrl+p", *"undo", "enter")  # it is found, but needs the override under the cursor
        await until(pilot, lambda: "Press 4 for Trail, then z." in toasts(pilot))
        await pilot.press("escape", "ctrl+p", *"failures views", "enter")  # an action of another screen
        await until(pilot, lambda: "hopeless" in screen_text(pilot))


async def test_tracebacks_are_shown_by_their_last_line(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        await failures(pilot)
        assert keys(pilot)
        assert "KeyError: 'user'" in screen_text(pilot)
        assert "Traceback" not in screen_text(pilot)
        assert any(error.startswith("Traceback") for error in ERRORS)
