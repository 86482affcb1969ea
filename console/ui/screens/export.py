"""A dialog that asks where to export to: the format, and the file with its folder."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Label, Static

from console.ui import safe
from console.ui.widgets.choices import OptionRow, RowOption
from console.ui.widgets.filter_bar import QueryInput, typed_keys_arrived

Formats = Mapping[str, tuple[str, str]]
"""The ending of a file's name → the name of its format, and what it is good for."""
DATA: Formats = {".jsonl": ("JSON lines", "one JSON object per line"), ".csv": ("CSV", "for a spreadsheet")}
REPORT: Formats = {".html": ("HTML", "one file with charts, for a browser or paper"), ".md": ("Markdown", "plain text")}


class ExportScreen(ModalScreen[str | None]):
    """Returns the path of the file to write."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("enter", "write", show=False, priority=True),
        Binding("down,tab", "app.focus_next", show=False, priority=True),
        Binding("up,shift+tab", "app.focus_previous", show=False, priority=True),
    ]

    def __init__(self, what: str, stem: str, now: datetime, formats: Formats = DATA) -> None:
        super().__init__()
        self._what = what
        self._formats = formats
        self._path = Path.cwd() / f"{stem}-{now:%Y%m%dT%H%M%SZ}{next(iter(formats))}"

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog export") as dialog:
            dialog.border_title = safe.phrase("[b]Export $what[/]", what=self._what)
            yield OptionRow("Format", id="format")
            yield Label("File, with its folder", classes="hint")
            yield QueryInput(str(self._path), id="path")
            yield Static(id="problem")
            yield Static(safe.phrase("[b $accent]enter[/] [$muted]write[/]  [b $accent]esc[/] [$muted]cancel[/]"))

    def on_mount(self) -> None:
        row = self.query_one(OptionRow)
        row.offer([RowOption(suffix, name) for suffix, (name, _) in self._formats.items()])
        row.consequence = self._formats[row.value][1]
        self.query_one("#problem").display = False
        self.query_one(QueryInput).focus()

    @on(OptionRow.LetterTyped)
    def _letter_typed(self) -> None:
        """Text goes to the path."""
        self.query_one(QueryInput).focus()

    @on(OptionRow.Changed)
    def _format_chosen(self) -> None:
        """The name follows the format."""
        row, field = self.query_one(OptionRow), self.query_one(QueryInput)
        row.consequence = self._formats[row.value][1]
        for suffix in self._formats:
            if field.value.endswith(suffix):
                field.value = field.value.removesuffix(suffix) + row.value
                return

    async def action_write(self) -> None:
        await typed_keys_arrived(self.focused)
        path = self.query_one(QueryInput).value.strip()
        if not path.endswith(tuple(self._formats)):
            problem = self.query_one("#problem", Static)
            why = f"The name has to end in {' or '.join(self._formats)}."
            problem.update(safe.phrase("[$error]✗ $why[/]", why=why))
            problem.display = True
            self.query_one(QueryInput).focus()
        else:
            self.dismiss(path)
