"""The rules that hold on every screen: escape, disabled keys, moving, the palette, the command line, sizes."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Self

import pytest
from textual.app import App, ComposeResult
from textual.geometry import Region

from console.__main__ import main
from console.ui.cells import Column
from console.ui.command_line import command_line
from console.ui.screens.base import BaseScreen
from console.ui.screens.causes import CausesScreen
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.help import HelpScreen
from console.ui.screens.item import ItemScreen
from console.ui.screens.override import OverrideScreen
from console.ui.screens.overview import OverviewScreen
from console.ui.screens.pick import Choice, ChoiceList, PickScreen, matching
from console.ui.widgets.top_bar import SystemStates, Tab, TopBar
from tests.ui.driving import NARROW, console, failures, filtered, items, opened, screen_text, toasts, until
from tests.ui.planning import confirmed, planned
from tests.ui.world import NOON, make_async, small_world, with_trail


async def test_escape_undoes_marks_then_the_filter_then_returns(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        screen = await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await until(pilot, lambda: items(pilot).item is not None)
        await pilot.press("space", "slash", "x")
        await pilot.press("escape")  # leaves the input; the applied filter stays and is shown
        assert not screen.typing
        assert screen.bar.input.value == "condition:terminal" == str(screen.filter)
        assert items(pilot).marks
        await pilot.press("escape")
        assert not items(pilot).marks
        await pilot.press("escape")
        await until(pilot, lambda: str(screen.filter) == "" == screen.bar.input.value)
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverviewScreen))
        await pilot.press("escape")
        await until(pilot, lambda: "There is nothing to go back to. Press q to quit." in toasts(pilot))


async def test_a_dialog_with_a_text_says_what_enter_does_and_why_it_did_nothing(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        await failures(pilot)
        await pilot.press("w")
        await until(pilot, lambda: "enter save  esc close" in screen_text(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: "Nothing is typed yet (name of the view)." in toasts(pilot))
        assert isinstance(pilot.app.screen, PickScreen)


@pytest.mark.parametrize("width", range(40, 130))
def test_nothing_in_the_top_bar_is_cut_off(width: int) -> None:
    """The titles of the other tabs go last."""
    tabs = [*("Overview", "Failures", "Causes", "Trail"), "Override"]
    bar = TopBar("override")
    bar.set_reactive(TopBar.tabs, tuple(Tab(title.lower(), str(n), title) for n, title in enumerate(tabs, 1)))
    bar.set_reactive(TopBar.override, "override 36%")
    bar.set_reactive(TopBar.systems, SystemStates(7, 0))
    bar.set_reactive(TopBar.now, NOON)
    text = bar.line(width).plain
    assert len(text) == width
    assert text.endswith((" ▸ override 36% ", " ▸ 36% ", " ● 7 live ", "Z "))
    assert "36%" in text
    assert ("1 Overview" in text) == (width >= 62)


async def test_escape_twice_in_one_burst_closes_one_screen_at_a_time(tmp_path: Path) -> None:
    """Both keys find the same screen on top; the second one crashed the console."""
    async with opened(small_world(tmp_path, 60)) as pilot:
        listed = await failures(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        for _ in range(2):
            await console(pilot).action_back()
        await until(pilot, lambda: pilot.app.screen is listed)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        item = pilot.app.screen
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, HelpScreen))
        pilot.app.call_later(item.dismiss, None)  # it is covered: neither it nor what covers it is closed
        await pilot.pause()
        assert isinstance(pilot.app.screen, HelpScreen)
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is item)


async def test_escape_returns_to_the_cause_that_was_opened(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        listed = await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await pilot.press("3")
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen) and pilot.app.screen.table.causes)
        await pilot.press("enter")
        await until(pilot, lambda: pilot.app.screen is listed and "cause:" in str(listed.filter))
        await pilot.press("escape")
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen))
        assert str(listed.filter) == "condition:terminal"  # as it was before


async def test_escape_closes_a_dialog_and_an_item(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        screen = await failures(pilot)
        for key in ("question_mark", "ctrl+p", "colon", "c", "f", "enter"):
            await pilot.press(key)
            await until(pilot, lambda: pilot.app.screen is not screen)
            await pilot.press("escape")
            await until(pilot, lambda: pilot.app.screen is screen)


async def test_below_a_dialog_no_key_of_the_screen_is_named(tmp_path: Path) -> None:
    """They do something else there, or nothing."""
    async with opened(small_world(tmp_path, 30)) as pilot:
        await failures(pilot)
        await until(pilot, lambda: "Requeue" in screen_text(pilot).splitlines()[-1])
        await pilot.press("colon")
        await until(pilot, lambda: not screen_text(pilot).splitlines()[-1].strip())
        await pilot.press("escape")
        await until(pilot, lambda: "Requeue" in screen_text(pilot).splitlines()[-1])


async def test_a_disabled_key_says_why_and_a_foreign_key_where_it_works(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        await failures(pilot)
        await pilot.press("u")
        await until(pilot, lambda: "Unmark needs marked items." in toasts(pilot))
        await pilot.press("r")
        await until(pilot, lambda: "Requeue is not available: there is no trail" in toasts(pilot))
        await pilot.press("1", "w")
        await until(pilot, lambda: "w does nothing here. It works in Failures." in toasts(pilot))


async def test_a_hint_goes_with_the_next_key(tmp_path: Path) -> None:
    """Hints stood over the status line of the next screens, and piled up."""
    async with opened(small_world(tmp_path, 30), NARROW) as pilot:
        await failures(pilot)
        for _ in range(2):
            await pilot.press("u")
            await until(pilot, lambda: "Unmark needs marked items." in screen_text(pilot))
        assert toasts(pilot).count("Unmark needs") == 1
        await pilot.press("1")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverviewScreen) and not toasts(pilot))
        await until(pilot, lambda: "Unmark needs" not in screen_text(pilot))
        console(pilot).say("The backup is written.")  # an answer that comes later stays for its time
        await until(pilot, lambda: "The backup is written." in screen_text(pilot))
        await pilot.press("2")
        assert "The backup is written." in toasts(pilot)


async def test_the_text_below_a_list_is_scrolled_by_keys(tmp_path: Path) -> None:
    """It was cut, and only a mouse could scroll it."""
    async with opened(small_world(tmp_path, 60), (80, 16)) as pilot:
        await pilot.press("3")
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen) and pilot.app.screen.table.causes)
        screen = pilot.app.screen
        assert isinstance(screen, CausesScreen)
        panel = screen.panel
        assert panel is not None
        await until(pilot, lambda: panel.max_scroll_y > 0)
        await pilot.press("tab", "j")
        await until(pilot, lambda: panel.scroll_y == 1)
        assert screen.table.cursor == 0
        await pilot.press("escape", "j")  # back to the list, not to the screen before
        await until(pilot, lambda: screen.table.cursor == 1)
        assert pilot.app.screen is screen
        await pilot.click(panel)  # takes no keys from the list
        assert screen.table.has_focus
        await pilot.press("tab", "tab", "k")
        await until(pilot, lambda: screen.table.cursor == 0)


async def test_tab_does_something_or_says_why_not(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30), NARROW) as pilot:
        await failures(pilot)
        await pilot.press("tab")
        await until(pilot, lambda: "Panel needs a text beside or below the list." in toasts(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        item = pilot.app.screen
        assert isinstance(item, ItemScreen)
        await pilot.press("tab")
        assert item.tab == "payload"


async def test_tab_goes_to_the_text_beside_the_list(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 30)) as pilot:
        screen = await failures(pilot)
        await pilot.press("tab")
        assert screen.preview.has_focus
        await pilot.press("p")  # hides it
        await until(pilot, lambda: items(pilot).has_focus)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))
        await pilot.press("tab")
        await until(pilot, lambda: pilot.app.screen.query_one("#error").has_focus)
        await pilot.press("tab")
        await until(pilot, lambda: pilot.app.screen.query_one("#facts").has_focus)


async def test_moving_as_elsewhere(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        await failures(pilot)
        table = items(pilot)
        await until(pilot, lambda: table.complete)
        await pilot.press("j", "j", "k")
        assert table.cursor == 1
        await pilot.press("G")
        assert table.cursor == table.total() - 1
        await pilot.press("g")
        assert table.cursor == table.total() - 1  # one g only waits for the second
        await pilot.press("g")
        assert table.cursor == 0
        await pilot.press("end", "home", "pagedown", "pageup")
        assert table.cursor == 0
        await pilot.click(table, offset=(5, 3))
        assert table.cursor == 2
        await pilot.click(table, offset=(5, 3), times=2)
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen))


async def test_a_click_on_a_tab_switches(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 20), NARROW) as pilot:
        await until(pilot, lambda: "Causes" in screen_text(pilot))
        at = screen_text(pilot).splitlines()[0].index("Causes")
        await pilot.click(offset=(at, 0))
        await until(pilot, lambda: isinstance(pilot.app.screen, CausesScreen))


@pytest.mark.parametrize("size", [(39, 12), (80, 9), (20, 5)])
async def test_below_forty_by_ten_one_line_says_so(tmp_path: Path, size: tuple[int, int]) -> None:
    async with opened(small_world(tmp_path, 20), NARROW) as pilot:
        for key in ("1", "2", "3", "question_mark"):
            await pilot.press(key)
            await pilot.resize_terminal(*size)
            await until(pilot, lambda: screen_text(pilot).strip().startswith("Too small"))
            await pilot.resize_terminal(40, 10)
            await until(pilot, lambda: "Too small" not in screen_text(pilot))


@pytest.mark.parametrize("key", "1234")
async def test_at_forty_by_ten_no_screen_scrolls_as_a_whole(tmp_path: Path, key: str) -> None:
    given = with_trail(small_world(tmp_path, 200), tmp_path)
    async with opened(given, (40, 10)) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await confirmed(pilot, "the timeouts are over")
        await until(pilot, lambda: "recovered" in screen_text(pilot))
        for _ in range(2):  # the Override, then the place
            lines = screen_text(pilot).splitlines()
            assert not pilot.app.screen.show_vertical_scrollbar
            assert lines[0].split()
            assert "Quit" in lines[-1]
            await pilot.press(key)
            await until(pilot, lambda: not isinstance(pilot.app.screen, OverrideScreen))


async def test_an_override_says_how_it_goes_at_forty_by_ten(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 200), tmp_path), (40, 10)) as pilot:
        await failures(pilot)
        await filtered(pilot, "condition:terminal error~timeout")
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        await confirmed(pilot, "the timeouts are over")
        await until(pilot, lambda: "Written" in screen_text(pilot) and "requeued" in screen_text(pilot))
        await pilot.press("4")
        heading = ["age", "state", "result"]
        await until(pilot, lambda: screen_text(pilot).splitlines()[1].split() == heading)


async def test_the_field_that_is_typed_in_is_seen_at_forty_by_ten(tmp_path: Path) -> None:
    async with opened(with_trail(small_world(tmp_path, 200), tmp_path), (40, 10)) as pilot:
        await failures(pilot)
        await pilot.press("A", "r")
        await planned(pilot)
        await until(pilot, lambda: "Reason" in screen_text(pilot))


async def test_the_cursor_of_the_list_with_the_focus_has_a_bar(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        await until(pilot, lambda: screen_text(pilot).count("▌") == 1)
        first = next(n for n, line in enumerate(screen_text(pilot).splitlines()) if line.startswith("▌"))
        await pilot.press("tab")
        await until(pilot, lambda: screen_text(pilot).splitlines()[first][0] == " ")
        assert screen_text(pilot).count("▌") == 1


async def test_rows_that_are_read_again_and_look_the_same_are_not_painted_again() -> None:
    asked: list[tuple[Region, ...]] = []

    class Watched(ChoiceList):
        def refresh(self, *regions: Region, **more: bool) -> Self:
            asked.append(regions)
            return super().refresh(*regions, **more)

    class Alone(App[None]):
        def compose(self) -> ComposeResult:
            yield Watched([Column("", 10, 9), Column("", 10, 5), Column("", 4, 7)])

    async with Alone().run_test(size=NARROW) as pilot:
        listed = pilot.app.query_one(Watched)
        listed.choices = [Choice(name, name) for name in "abc"]
        await until(pilot, lambda: "c" in screen_text(pilot))
        asked.clear()
        listed.choices = [Choice(name, name, key="") for name in "abc"]
        listed.rows_changed(0)
        assert asked == []
        listed.choices = [Choice(name, name) for name in "abz"]
        assert [region.y for regions in asked for region in regions] == [2]
        await until(pilot, lambda: "z" in screen_text(pilot))


async def test_a_choice_without_hints_has_the_whole_width(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 20), NARROW) as pilot:
        await until(pilot, lambda: isinstance(pilot.app.screen, BaseScreen))
        title = "until it reaches another system, or a second one"
        pilot.app.push_screen(PickScreen("Snooze", [Choice("a", title), Choice("b", "for an hour")]))
        await until(pilot, lambda: title in screen_text(pilot))


def test_every_typed_word_has_to_be_there_and_beginnings_come_first() -> None:
    choices = [Choice("a", "Save view", "w"), Choice("b", "Views", "choose a view"), Choice("c", "Sort", "by column")]
    assert [choice.value for choice in matching(choices, "view")] == ["b", "a"]
    assert [choice.value for choice in matching(choices, "view choose")] == ["b"]
    assert len(matching(choices, "")) == 3


async def test_the_command_of_a_screen_can_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For each place: what `c` shows is a command that this program accepts, and it finds the same."""
    make_async(tmp_path / "real.db", 40)
    config = tmp_path / "it's a config.yaml"
    config.write_text(
        "backends:\n  queue:\n    plugin: sqlite_queue\n    dialect: async_tasks\n"
        f"    url: 'sqlite:///{tmp_path / 'real.db'}'\n    task_types: [ANALYZE_ANSWER, ANALYZE_PROFILE, EMBED]\n"
        f"console:\n  trail: 'sqlite:///{tmp_path / 'trail.db'}'\n"
    )
    config.chmod(0o600)
    monkeypatch.setenv("COLUMNS", "300")
    given = small_world(tmp_path, 40, config=str(config))
    async with opened(given) as pilot:
        commands = []
        for key in ("1", "3", "4", "2"):
            await pilot.press(key)
            await until(pilot, lambda: isinstance(pilot.app.screen, BaseScreen))
            commands.append(pilot.app.screen.command())  # type: ignore[attr-defined]
            if key == "1":
                await pilot.press("tab")  # to the causes
                commands.append(pilot.app.screen.command())  # type: ignore[attr-defined]
        screen = await failures(pilot)
        assert isinstance(screen, FailuresScreen)
        await filtered(pilot, 'condition:terminal error~"rate limit"')
        await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
        found = items(pilot).total()
        await pilot.press("c")
        await until(pilot, lambda: "retriage --config" in screen_text(pilot))
        await pilot.press("enter")
        await until(pilot, lambda: console(pilot).clipboard)
        shown = console(pilot).clipboard
    assert [words[0] for words in commands] == ["upcoming", "causes", "causes", "trail", "list"]
    for words in commands:
        assert main(shlex.split(command_line(given, words))[1:]) == 0
    capsys.readouterr()
    assert main(shlex.split(shown)[1:]) == 0
    assert len(capsys.readouterr().out.splitlines()) == found
