"""The catalogue of every action in the console: its key, label and help text, by screen.

Bindings, palette, help, the docs' key table and the check of a keymap are made from it. Commands read it too, so it
does not import the UI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERYWHERE = "app"


@dataclass(frozen=True, slots=True)
class Action:
    """One action of one screen. `id` is `place.name`; a keymap refers to it."""

    id: str
    key: str
    label: str
    help: str
    dangerous: bool = False
    """Leads to a write; not available in a read-only console."""
    saves: bool = False
    """Writes a file of the console itself; not available in a read-only console."""
    needs: str = ""
    """What it needs, in words; the screen knows whether it is there."""
    shown: bool = True
    """Shown in the footer. Help and palette show every action."""
    at_once: bool = False
    """Carried out before the next key is handled, which is meant for the screen or input it leads to."""

    @property
    def place(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]


PLACES: Mapping[str, str] = {
    "overview": "Overview",
    "failures": "Failures",
    "causes": "Causes",
    "trail": "Trail",
    "item": "Item",
    "override": "Override",
    "live_override": "Override (live)",
}

AN_ITEM = "an item under the cursor"
A_CAUSE = "a cause under the cursor"
AN_OVERRIDE = "an override under the cursor"
UNFINISHED = "an override that is not finished"
RUNNING = "a running override"
MARKS = "marked items"
NO_CONFIG = "a console without a config"

CATALOGUE: tuple[Action, ...] = (
    Action("app.overview", "1", "Overview", "All systems, and their next retries", shown=False, at_once=True),
    Action("app.failures", "2", "Failures", "The items that need attention, in all systems", shown=False, at_once=True),
    Action("app.causes", "3", "Causes", "Failures by cause, counted over all systems", shown=False, at_once=True),
    Action("app.trail", "4", "Trail", "Audit log and integrity check", shown=False, at_once=True),
    Action("app.override", "5", "Override", "The override this console carries out", shown=False, at_once=True),
    Action("app.help", "question_mark", "Help", "List the keys of this screen"),
    Action("app.go_to", "g", "Go to", "Open an item by key, a system, a view or a screen", shown=False, at_once=True),
    Action("app.tour", "ctrl+t", "Tour", "Show or hide the tour", shown=False),
    Action("app.read_again", "ctrl+r", "Read again", "Read this screen again now", shown=False),
    Action("app.quit", "q", "Quit", "Close the console"),
    Action("overview.open", "enter", "Open", "List the failures of this system", needs="a system"),
    Action("overview.span", "h", "Hour/day", "Switch the chart between the next hour and the next day"),
    Action("overview.next_card", "down,j", "Next", "Go to the next system", shown=False),
    Action("overview.previous_card", "up,k", "Previous", "Go to the previous system", shown=False),
    Action("overview.demo", "d", "Demo", "Open the demo", needs=NO_CONFIG),
    Action("overview.copy", "y", "Copy", "Copy the address of this system", shown=False),
    Action("failures.open", "enter", "Open", "Show everything about this item", needs=AN_ITEM),
    Action("failures.filter", "slash", "Filter", "Edit the filter; enter applies it, escape cancels", at_once=True),
    Action("failures.mark", "space", "Mark", "Mark or unmark this item and go to the next", needs=AN_ITEM),
    Action("failures.mark_range", "v", "Range", "Mark from the last mark to this item", needs=AN_ITEM, shown=False),
    Action("failures.mark_screen", "a", "All on screen", "Mark every item on the screen", needs=AN_ITEM, shown=False),
    Action(
        "failures.mark_matching",
        "A",
        "All matching",
        "Mark every item that matches the filter",
        needs=AN_ITEM,
        shown=False,
    ),
    Action("failures.unmark", "u", "Unmark", "Clear all marks", needs=MARKS, shown=False),
    Action(
        "failures.requeue",
        "r",
        "Requeue",
        "Plan a requeue of the marked items, or of this one",
        dangerous=True,
        needs=AN_ITEM,
    ),
    Action("failures.sort", "s", "Sort", "Sort by the next column; after the last one, in each system's own order"),
    Action("failures.reverse", "S", "Reverse", "Reverse the sort order", shown=False),
    Action("failures.views", "f", "Views", "Choose a view"),
    Action("failures.save_view", "w", "Save view", "Save this filter as a view", saves=True, shown=False),
    Action(
        "failures.copy", "y", "Copy", "Copy the keys of the marked items, or of this one", needs=AN_ITEM, shown=False
    ),
    Action("failures.export", "e", "Export", "Write the marked items, or all that match, to a file", shown=False),
    Action("causes.open", "enter", "Open", "List the failures with this cause", needs=A_CAUSE),
    Action(
        "causes.requeue", "r", "Requeue", "Plan a requeue of all items with this cause", dangerous=True, needs=A_CAUSE
    ),
    Action("causes.filter", "slash", "Filter", "Edit the filter; enter applies it, escape cancels", at_once=True),
    Action("causes.copy", "y", "Copy", "Copy the error", needs=A_CAUSE, shown=False),
    Action("causes.runbook", "o", "Runbook", "Copy the runbook link", needs=A_CAUSE),
    Action("trail.open", "enter", "Open", "Show this override with the outcome of each item", needs=AN_OVERRIDE),
    Action("trail.verify", "v", "Verify", "Check that no record was altered"),
    Action("trail.resume", "x", "Resume", "Resume this override", dangerous=True, needs=UNFINISHED),
    Action("trail.undo", "z", "Undo", "Plan an undo of this override", dangerous=True, needs=AN_OVERRIDE),
    Action("trail.copy", "y", "Copy", "Copy the override id", needs=AN_OVERRIDE, shown=False),
    Action("override.back", "escape", "Back", "Back to the Trail"),
    Action("override.undo", "z", "Undo", "Plan an undo of this override", dangerous=True),
    Action("override.resume", "x", "Resume", "Resume this override", dangerous=True, needs=UNFINISHED),
    Action("override.copy", "y", "Copy", "Copy the override id", shown=False),
    Action("live_override.back", "escape", "Back", "Back; the override keeps running"),
    Action("live_override.pause", "p", "Pause", "Pause after the current chunk", needs=RUNNING),
    Action("live_override.proceed", "c", "Continue", "Continue after a pause", needs=RUNNING),
    Action("live_override.stop", "x", "Stop", "Stop after the current chunk; it can be resumed", needs=RUNNING),
    Action("item.back", "escape", "Back", "Back to the list"),
    Action("item.requeue", "r", "Requeue", "Plan a requeue of this item", dangerous=True),
    Action("item.search", "slash", "Search", "Search in the error and the row", at_once=True),
    Action("item.next_match", "n", "Next match", "Go to the next match", shown=False),
    Action("item.previous_match", "N", "Previous match", "Go to the previous match", shown=False),
    Action("item.copy", "y", "Copy error", "Copy the whole error"),
    Action("item.copy_key", "Y", "Copy key", "Copy the key of this item", shown=False),
    Action("item.same_cause", "c", "Same cause", "List all failures with this cause"),
    Action("item.runbook", "o", "Runbook", "Copy the runbook link", shown=False),
)


MOVES: Mapping[str, str] = {
    "Up": "up,k",
    "Down": "down,j",
    "Page up": "pageup,ctrl+b",
    "Page down": "pagedown,ctrl+f",
    "First": "home",
    "Last": "end,G",
}
"""Keys to move in lists and scroll in texts. A keymap does not change them."""


def actions_of(place: str) -> tuple[Action, ...]:
    return tuple(action for action in CATALOGUE if action.place == place)


def action_named(place: str, name: str) -> Action | None:
    return next((action for action in CATALOGUE if action.place == place and action.name == name), None)
