"""Questions before something happens: quit while an override is running, resume a stopped one that has a canary."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Static

from console.core.confirm import ConfirmationForm
from console.core.override import Override
from console.core.recovery import ResultCounts
from console.ui import safe
from console.ui.widgets.filter_bar import QueryInput, typed_keys_arrived


class QuitScreen(ModalScreen[bool]):
    """Returns whether to quit. Staying has the focus."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(False)", show=False),
        Binding("left,h,up,k", "app.focus_previous", show=False),
        Binding("right,l,down,j", "app.focus_next", show=False),
    ]
    AUTO_FOCUS = "#stay"

    def __init__(self, progress: str) -> None:
        super().__init__()
        self._progress = progress

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog quit") as dialog:
            dialog.border_title = safe.phrase("[b]An override is running[/]")
            yield Static(
                safe.phrase(
                    "$progress\n\nIf you quit, it stops after the items that it is writing now. They are recorded. "
                    "You can resume it later from the Trail.\n",
                    progress=self._progress,
                )
            )
            with Horizontal(classes="buttons"):
                yield Button("Stay", id="stay", compact=True)
                yield Button("Quit and stop it", id="quit", compact=True, variant="warning")

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "quit")


class ResumeScreen(ModalScreen[int | None]):
    """Asks again before a stopped override with a canary goes on. Returns the confirmed number of items."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", show=False),
        Binding("enter", "confirm", show=False, priority=True),
    ]

    def __init__(self, override: Override, form: ConfirmationForm, results: ResultCounts | None) -> None:
        super().__init__()
        self._override = override
        self._form = form
        self._results = results
        """What became of the items that were requeued, as far as it is known."""

    def compose(self) -> ComposeResult:
        so_far = "\nRequeued so far: $results.\n" if self._results is not None else ""
        with Vertical(classes="dialog resume") as dialog:
            dialog.border_title = safe.phrase("[b]Resume override $id[/]", id=self._override.override_id)
            yield Static(
                safe.phrase(
                    f"$note\n{so_far}\nResuming begins with a new canary among the $left items that are left. "
                    "It helps only if the cause is fixed.\n",
                    note=self._override.note,
                    results="" if self._results is None else self._results.summary(),
                    left=self._form.changes,
                )
            )
            yield QueryInput(placeholder=f"type {self._form.changes} to resume")
            yield Static(id="problem")
            yield Static(safe.phrase("[b $accent]enter[/] [$muted]resume[/]  [b $accent]esc[/] [$muted]cancel[/]"))

    async def action_confirm(self) -> None:
        await typed_keys_arrived(self.focused)
        typed = self.query_one(QueryInput).value.strip()
        if typed == str(self._form.changes):
            self.dismiss(self._form.changes)
        else:
            why = f"Type {self._form.changes}, the number of items that are left."
            self.query_one("#problem", Static).update(safe.phrase("[$error]✗ $why[/]", why=why))
