"""Long texts: wrapped so that every character is on the screen, also beside a scrollbar."""

from __future__ import annotations

from textual.app import App, ComposeResult

from console.ui.cells import Cell
from console.ui.widgets.text_pane import TextPane
from tests.ui.driving import screen_text, until


class OnePane(App[None]):
    CSS = "TextPane { height: 10; scrollbar-size-vertical: 1; overflow-x: hidden; }"

    def compose(self) -> ComposeResult:
        yield TextPane()


async def test_a_scrollbar_hides_no_character() -> None:
    app = OnePane()
    async with app.run_test(size=(40, 12)) as pilot:
        pane = app.query_one(TextPane)
        pane.lines = tuple([Cell(f"{n:02}" + "x" * 37 + "|")] for n in range(30))
        await until(pilot, lambda: pane.show_vertical_scrollbar)
        await until(pilot, lambda: screen_text(pilot).count("|") == 5)
        assert [line[:2] for line in screen_text(pilot).splitlines()[:10:2]] == ["00", "01", "02", "03", "04"]
