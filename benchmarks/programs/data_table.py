"""Textual's own table with a thousand rows."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.widgets import DataTable


class TableApp(App[None]):
    """Columns as in Failures."""

    def compose(self) -> ComposeResult:
        yield DataTable(cursor_type="row")

    def on_mount(self) -> None:
        table = self.query_one(DataTable)
        table.add_columns("backend", "item", "type", "condition", "tries", "next retry", "error", "age")
        for n in range(1_000):
            table.add_row(
                "queue", f"row {n}", "ANALYZE", "⊗ terminal", "4/4", "never", f"ERR_DB: deadlock, process {n}", "3d"
            )
        table.focus()


if __name__ == "__main__":
    TableApp().run()
