"""Long texts are wrapped so that every character is visible, also next to a scrollbar."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from textual.app import App, ComposeResult

from console.ui import safe
from console.ui.cells import Cell
from console.ui.widgets.text_pane import TextPane, wrapped
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


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("attempt 1  pending -> in_progress", ["attempt 1  pending", "-> in_progress"]),
        ("attempt 1  pending → in_progress", ["attempt 1  pending →", "in_progress"]),
        ("x" * 45, ["x" * 20, "x" * 20, "x" * 5]),
        ("→" * 45, ["→" * 20, "→" * 20, "→" * 5]),
        ("表" * 12, ["表" * 10, "表" * 2]),
        ("e\u0301" * 25, ["e\u0301" * 20, "e\u0301" * 5]),
        ("", [""]),
    ],
)
def test_lines_break_at_a_blank_where_one_is_near(text: str, rows: list[str]) -> None:
    assert ["".join(cell.text for cell in row) for row in wrapped([Cell(text)], 20)] == rows


@given(st.text(st.sampled_from("ab \u2192\u8868\u0301\u200d\U0001f469é")), st.integers(8, 30))
def test_every_character_is_on_a_row_that_fits(text: str, width: int) -> None:
    shown = safe.line(text, 500)
    rows = ["".join(cell.text for cell in row) for row in wrapped([Cell(shown)], width)]
    assert all(cell_len(row) <= width for row in rows)
    assert "".join(rows).replace(" ", "") == shown.replace(" ", "")


def test_a_mark_far_to_the_right_keeps_its_indentation_on_a_narrow_terminal() -> None:
    rows = wrapped([Cell(" " * 40), Cell("17:20 billing v2.7.1: renames invoices.customer_ref")], 76)
    assert [row[0].text for row in rows] == [" " * 40] * 2
    rows = wrapped([Cell("x" * 60), Cell("a text that has too little room beside it")], 76)
    assert rows[1][0].text == ""
