"""The filter bar: what is shown is what is applied; completion, history, the language; views, order, preview."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.cli.items import condition_colour
from console.core.item import Condition
from console.core.listing import Listing
from console.core.query import Filter, Sort
from console.settings.models import ConsoleSettings
from console.ui.completion import Vocabulary, completed, completions
from console.ui.screens.arrange import ArrangeScreen
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.filter_language import LanguageScreen
from console.ui.screens.item import ItemScreen
from console.ui.themes import ANSI
from console.ui.views import SavedViews
from console.ui.widgets.filter_bar import QueryInput
from tests.ui.driving import NARROW, WIDE, failures, filtered, items, opened, screen_text, toasts, until
from tests.ui.world import NOON, small_world

WORDS = Vocabulary(("jobs", "mail"), {"storms": "condition:retrying next<15m"}, {"EMBED", "a b"})


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("cond", ["condition:"]),
        ("-err", ["error~"]),
        ("c", ["condition:", "cause:", "created<"]),
        ("condition:t", ["terminal"]),
        ("condition:terminal,", ["waiting", "running", "retrying", "failed", "stuck", "done", "cancelled", "unknown"]),
        ("attempts>=2 backend:", ["jobs", "mail"]),
        ("type:", ["EMBED", '"a b"']),
        ("recoverable:n", ["no"]),
        ("sto", ["condition:retrying next<15m"]),
        ('error~"rate b', []),
        ("timeout", []),
        ("", []),
    ],
)
def test_what_could_stand_where_the_cursor_is(typed: str, offered: list[str]) -> None:
    found = completions(typed, len(typed), WORDS)
    assert [one.text for one in found] == offered
    for one in found:
        if not one.names_field:
            Filter.parse(completed(typed, one)[0])  # what is offered is never a mistake


async def test_tab_completes_and_again_takes_the_next(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        screen = await failures(pilot)
        await pilot.press("slash", *"cond", "tab")
        assert screen.bar.input.value == "condition:"
        await pilot.press("t", "tab", "enter")
        await until(pilot, lambda: str(screen.filter) == "condition:terminal")
        await pilot.press("slash", *"backend", "colon", "tab")
        assert screen.bar.input.value == "condition:terminal backend:analysis-queue"
        await pilot.press("tab", "enter")
        await until(pilot, lambda: str(screen.filter) == "condition:terminal backend:jobs")


async def test_a_mistake_keeps_the_last_good_filter_applied_and_shown(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        screen = await failures(pilot)
        await filtered(pilot, "condition:terminal")
        await filtered(pilot, "attempts:many")
        await until(pilot, lambda: "not a number of attempts" in screen_text(pilot))
        assert "still applied: condition:terminal" in screen_text(pilot)
        assert "Write a whole number, such as 3." in " ".join(screen_text(pilot).split())  # the fix, in full
        assert screen.typing  # it is corrected there
        await pilot.press("escape")
        await until(pilot, lambda: "not a number" not in screen_text(pilot))
        assert screen_text(pilot).splitlines()[1].split() == ["/", "condition:terminal"]
        assert str(screen.filter) == "condition:terminal"
        assert items(pilot).question.filter == screen.filter  # type: ignore[union-attr]


async def test_the_sign_of_a_mistake_is_seen_with_16_colours(tmp_path: Path) -> None:
    """It was red on red: 16 colours have no pale red for the background."""
    async with opened(small_world(tmp_path, 20, theme="ansi"), NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "attempts:many")
        await until(pilot, lambda: "✗ " in screen_text(pilot))
        strips = pilot.app.screen._compositor.render_strips(pilot.app.size)
        signs = [segment.style for line in strips for segment in line if "✗" in segment.text]
        assert signs
        assert all(style is not None and style.color != style.bgcolor for style in signs)


async def test_a_field_that_is_begun_is_not_searched_for(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        screen = await failures(pilot)
        await pilot.press("slash", *"condi")
        await pilot.pause(0.5)
        assert str(screen.filter) == ""
        assert "still applied: no filter   tab condition:" in screen_text(pilot)
        await pilot.press("tab", "t", "e")
        await until(pilot, lambda: "still applied: no filter   tab terminal" in screen_text(pilot))
        await pilot.press("tab")
        await until(pilot, lambda: "still applied" not in screen_text(pilot))
        await until(pilot, lambda: str(screen.filter) == "condition:terminal")
        await pilot.press("ctrl+u", *"condi")
        await until(pilot, lambda: "still applied: condition:terminal   tab" in screen_text(pilot))
        await pilot.press("enter")  # but a word is searched for when it is entered
        await until(pilot, lambda: str(screen.filter) == "condi")


async def test_up_brings_an_earlier_filter_back(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60)) as pilot:
        screen = await failures(pilot)
        for text in ("condition:terminal", "condition:stuck"):
            await filtered(pilot, text)
            await until(pilot, lambda text=text: str(screen.filter) == text)
        await pilot.press("slash", "up", "up")
        assert screen.bar.input.value == "condition:terminal"
        await pilot.press("down", "enter")
        await until(pilot, lambda: str(screen.filter) == "condition:stuck")


async def test_a_question_mark_on_an_empty_bar_shows_the_language(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 20), NARROW) as pilot:
        screen = await failures(pilot)
        await pilot.press("slash", "question_mark")
        await until(pilot, lambda: isinstance(pilot.app.screen, LanguageScreen))
        await until(pilot, lambda: "cause:7f3a" in screen_text(pilot))
        await pilot.press("escape")
        await until(pilot, lambda: pilot.app.screen is screen and screen.typing)
        await pilot.press("a", "question_mark")
        assert screen.bar.input.value == "a?"


async def test_order_and_columns_are_chosen_in_one_dialog(tmp_path: Path) -> None:
    given = small_world(tmp_path, 60)
    async with opened(given, (100, 30)) as pilot:
        screen = await failures(pilot)
        await pilot.press("s")
        await until(pilot, lambda: isinstance(pilot.app.screen, ArrangeScreen))
        assert "no index: reads all of analysis-queue" in screen_text(pilot)  # before it is chosen
        await pilot.press("down", "enter")
        await until(pilot, lambda: str(screen.sort) == "backend:asc")
        assert "by system ↑" in screen_text(pilot)
        listed = [item.key for item in Listing(given.backends, Filter(), NOON, screen.sort)]
        assert [key.backend for key in listed] == sorted(key.backend for key in listed)
        assert items(pilot).item_at(0).key == listed[0]  # type: ignore[union-attr]
        await pilot.press("s", "enter")  # again: reversed
        await until(pilot, lambda: str(screen.sort) == "backend:desc")
        await pilot.press("s", "down", "space", "escape")
        await until(pilot, lambda: " id " not in screen_text(pilot).splitlines()[2])


async def test_what_is_typed_into_a_filter_that_is_there_is_another_term(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 40)) as pilot:
        screen = await failures(pilot)
        await filtered(pilot, "backend:jobs")
        await pilot.press("slash", *"stuck", "enter")
        await until(pilot, lambda: str(screen.bar.filter) == "backend:jobs stuck")


async def test_a_click_on_a_heading_sorts(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        screen = await failures(pilot)
        at = screen_text(pilot).splitlines()[2].index("attempts")
        await pilot.click(items(pilot), offset=(at, 0))
        await until(pilot, lambda: screen.sort == Sort.parse("attempts"))
        await pilot.click(items(pilot), offset=(at, 0))
        await until(pilot, lambda: str(screen.sort) == "attempts:asc")


@pytest.mark.parametrize(("size", "shown"), [(WIDE, True), ((80, 32), True), (NARROW, False)])
async def test_the_preview_shows_the_whole_error_where_there_is_room(
    tmp_path: Path, size: tuple[int, int], shown: bool
) -> None:
    async with opened(small_world(tmp_path, 60), size) as pilot:
        screen = await failures(pilot)
        await filtered(pilot, "error~Traceback condition:retrying")
        await until(pilot, lambda: items(pilot).item is not None)
        if not shown:
            assert not screen.preview.display
            await pilot.press("p")
            await until(pilot, lambda: "The preview needs 120 columns or 30 lines" in toasts(pilot))
            return
        await until(pilot, lambda: 'File "/srv/bot/analyse.py"' in screen_text(pilot))
        if size == WIDE:  # else it is further down
            await until(pilot, lambda: "● 2  failed" in screen_text(pilot))  # the attempts were read
        await pilot.press("p")
        await until(pilot, lambda: "analyse.py" not in screen_text(pilot))


@pytest.mark.parametrize(
    ("size", "beside", "least"), [((80, 24), False, 17), ((120, 24), True, 17), ((120, 40), False, 40), (WIDE, True, 30)]
)
async def test_the_error_has_room_in_the_list(
    tmp_path: Path, size: tuple[int, int], beside: bool, least: int
) -> None:
    async with opened(small_world(tmp_path, 60), size) as pilot:
        screen = await failures(pilot)
        await until(pilot, lambda: items(pilot).widths())
        assert screen.query_one("#listed").has_class("beside") == beside
        assert items(pilot).width_of("error") >= least
        assert items(pilot).width_of("attempts")
        assert items(pilot).width_of("next retry")


async def test_without_a_preview_the_last_line_has_the_error(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        await failures(pilot)
        await filtered(pilot, "error~timeout condition:terminal backend:analysis-queue")
        await until(pilot, lambda: items(pilot).item is not None)
        await until(pilot, lambda: "attempts used  ConnectionError: timeout after 30 s" in screen_text(pilot))


async def test_shift_and_arrows_extend_the_marks(tmp_path: Path) -> None:
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        await failures(pilot)
        table = items(pilot)
        await pilot.press("shift+down", "shift+down")
        assert table.cursor == 2
        assert list(table.marks) == [table.item_at(n).key for n in range(3)]  # type: ignore[union-attr]
        await pilot.press("u", "shift+up")
        assert len(table.marks) == 2


async def test_views_are_renamed_and_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    async with opened(small_world(tmp_path, 20)) as pilot:
        screen = await failures(pilot)
        screen.views.save("mine", "condition:stuck")
        await pilot.press("f", *"mine", "ctrl+e")
        await until(pilot, lambda: "Rename mine" in screen_text(pilot) and isinstance(pilot.app.focused, QueryInput))
        await pilot.press(*"ours", "enter")
        await until(pilot, lambda: screen.views.saved() == {"ours": "condition:stuck"})
        await until(pilot, lambda: "ours" in screen_text(pilot))
        await pilot.press(*"ours", "ctrl+d")
        await until(pilot, lambda: screen.views.saved() == {})
        await pilot.press("escape", "f", *"hopeless", "ctrl+d")  # one of the config
        await until(pilot, lambda: "'hopeless' is not a saved view" in toasts(pilot))


def test_the_demo_keeps_its_own_views(tmp_path: Path) -> None:
    """They are beside the trail, which the demo has in its own folder."""
    settings = ConsoleSettings.model_validate({"trail": f"sqlite:///{tmp_path}/demo/trail.db"})
    assert settings.views_file() == tmp_path / "demo" / "views.json"
    assert SavedViews(small_world(tmp_path, 1, views_file=settings.views_file())).file == settings.views_file()


async def test_enter_on_the_first_row_shows_its_error(tmp_path: Path) -> None:
    """From start to the error of the list's first row: two keys."""
    async with opened(small_world(tmp_path, 60), NARROW) as pilot:
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen) and items(pilot).item is not None)
        error = items(pilot).item.error  # type: ignore[union-attr]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen) and error[:40] in screen_text(pilot))


def test_a_condition_has_one_colour_in_the_console_and_in_commands(tmp_path: Path) -> None:
    variables = {**ANSI.variables, "warning": ANSI.warning, "error": ANSI.error, "good": ANSI.success}
    given = small_world(tmp_path, 30)
    for item in Listing(given.backends, Filter.parse("condition:*"), NOON):
        from console.actions.tones import tone

        assert str(variables[tone(item.condition)]).removeprefix("ansi_") == condition_colour(item)
    assert {Condition.RETRYING, Condition.STUCK} <= {i.condition for i in Listing(given.backends, Filter(), NOON)}
