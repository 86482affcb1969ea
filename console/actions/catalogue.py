"""The catalogue of every action in the console: its key, label and help text, by screen.

Bindings, palette, help, the docs' key table and the check of a keymap are made from it. Commands read it too, so it
does not import the UI.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERYWHERE = "app"


@dataclass(frozen=True, slots=True)
class KeyAction:
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
    "proposals": "Proposals",
    "item": "Item",
    "override": "Override",
    "override_items": "Items of an override",
}

AN_ITEM = "an item under the cursor"
A_CAUSE = "a cause under the cursor"
A_STATEFUL_CAUSE = "a cause with an error text under the cursor, and a trail"
AN_OVERRIDE = "an override under the cursor"
UNFINISHED = "an override that is not finished"
A_RUNNING_OVERRIDE = "a running override"
UNDOABLE = "an override that changed something and is not an undo"
A_PROPOSAL = "a proposal under the cursor"
AN_OPEN_PROPOSAL = "an open proposal under the cursor"
A_NUMBER = "a number above 0 under the cursor"
MARKS = "marked items"
NO_CONFIG = "a console without a config"
A_SYSTEM = "a configured system"
A_SEARCH = "a search. Press / to search"
A_PANEL = "a text beside or below the list"
A_LIST = "a list that it was opened from"
AN_ERROR = "an item with an error text"
A_RUNBOOK = "a configured runbook for this error"

CATALOGUE: tuple[KeyAction, ...] = (
    KeyAction("app.overview", "1", "Overview", "All systems, and their next retries", shown=False, at_once=True),
    KeyAction(
        "app.failures", "2", "Failures", "The items that need attention, in all systems", shown=False, at_once=True
    ),
    KeyAction("app.causes", "3", "Causes", "Failures by cause, counted over all systems", shown=False, at_once=True),
    KeyAction("app.trail", "4", "Trail", "Audit log and integrity check", shown=False, at_once=True),
    KeyAction("app.override", "5", "Override", "The override this console carries out", shown=False, at_once=True),
    KeyAction("app.proposals", "6", "Proposals", "Plans that wait for an approval", shown=False, at_once=True),
    KeyAction("app.back", "escape", "Back", "Go one step back: search, marks, filter, then the screen you came from"),
    KeyAction("app.help", "question_mark", "Help", "List the keys of this screen"),
    KeyAction(
        "app.go_to",
        "colon,ctrl+g",
        "Go to",
        "Open an item by key, a system, a view or a screen",
        shown=False,
        at_once=True,
    ),
    KeyAction("app.palette", "ctrl+p", "Commands", "Find every command by name, on every screen", at_once=True),
    KeyAction("app.command", "c", "Command", "Show the command line for what is on this screen", shown=False),
    KeyAction("app.tour", "ctrl+t", "Tour", "Show or hide the tour", shown=False),
    KeyAction("app.read_again", "ctrl+r", "Read now", "Read this screen again now", shown=False),
    KeyAction("app.quit", "q", "Quit", "Close the console"),
    KeyAction("overview.open", "enter", "Open", "List the failures of this system or cause", needs=A_SYSTEM),
    KeyAction(
        "overview.next_list", "tab", "Systems/causes", "Switch between the systems and the causes", needs=A_SYSTEM
    ),
    KeyAction(
        "overview.span", "t", "Hour/day", "Switch the chart between the next hour and the next day", needs=A_SYSTEM
    ),
    KeyAction("overview.earlier", "comma", "Earlier", "Show the systems as they were", needs=A_SYSTEM, shown=False),
    KeyAction("overview.later", "full_stop", "Later", "Go forward in the recorded past", needs=A_SYSTEM, shown=False),
    KeyAction("overview.report", "R", "Report", "Write a hand-over report to a file", needs=A_SYSTEM, shown=False),
    KeyAction("overview.demo", "D", "Demo", "Open the demo", needs=NO_CONFIG),
    KeyAction("overview.copy", "y", "Copy", "Copy the address of this system", needs=A_SYSTEM, shown=False),
    KeyAction("failures.open", "enter", "Open", "Show everything about this item", needs=AN_ITEM),
    KeyAction("failures.filter", "slash", "Filter", "Edit the filter", at_once=True),
    KeyAction("failures.mark", "space", "Mark", "Mark or unmark this item and go to the next", needs=AN_ITEM),
    KeyAction("failures.mark_range", "v", "Range", "Mark from the last mark to this item", needs=AN_ITEM, shown=False),
    KeyAction(
        "failures.mark_up", "shift+up", "Mark up", "Mark this item and the one above", needs=AN_ITEM, shown=False
    ),
    KeyAction(
        "failures.mark_down", "shift+down", "Mark down", "Mark this item and the one below", needs=AN_ITEM, shown=False
    ),
    KeyAction(
        "failures.mark_screen", "a", "All on screen", "Mark every item on the screen", needs=AN_ITEM, shown=False
    ),
    KeyAction(
        "failures.mark_matching",
        "A",
        "All matching",
        "Mark every item that matches the filter",
        needs=AN_ITEM,
        shown=False,
    ),
    KeyAction("failures.unmark", "u", "Unmark", "Clear all marks", needs=MARKS, shown=False),
    KeyAction(
        "failures.requeue",
        "r",
        "Requeue",
        "Plan a requeue of the marked items, or of this one",
        dangerous=True,
        needs=AN_ITEM,
    ),
    KeyAction(
        "failures.discard",
        "d",
        "Discard",
        "Plan a discard of the marked items, or of this one",
        dangerous=True,
        needs=AN_ITEM,
        shown=False,
    ),
    KeyAction(
        "failures.same_cause", "C", "Same cause", "List all failures with this cause", needs=AN_ITEM, shown=False
    ),
    KeyAction("failures.preview", "p", "Preview", "Show or hide the preview of this item"),
    KeyAction(
        "failures.panel",
        "tab",
        "Panel",
        "Scroll the text beside or below the list, or go back to the list",
        needs=A_PANEL,
        shown=False,
    ),
    KeyAction("failures.sort", "s", "Sort", "Choose the order and the columns"),
    KeyAction("failures.views", "f", "Views", "Choose, rename or delete a view"),
    KeyAction("failures.save_view", "w", "Save view", "Save this filter as a view", saves=True, shown=False),
    KeyAction(
        "failures.copy", "y", "Copy", "Copy the keys of the marked items, or of this one", needs=AN_ITEM, shown=False
    ),
    KeyAction("failures.export", "e", "Export", "Write the marked items, or all that match, to a file", shown=False),
    KeyAction("causes.open", "enter", "Open", "List the failures with this cause", needs=A_CAUSE),
    KeyAction(
        "causes.requeue", "r", "Requeue", "Plan a requeue of all items with this cause", dangerous=True, needs=A_CAUSE
    ),
    KeyAction(
        "causes.discard",
        "d",
        "Discard",
        "Plan a discard of all items with this cause",
        dangerous=True,
        needs=A_CAUSE,
        shown=False,
    ),
    KeyAction("causes.filter", "slash", "Filter", "Edit the filter", at_once=True),
    KeyAction("causes.sort", "s", "Sort", "Choose the column that the causes are sorted by"),
    KeyAction(
        "causes.acknowledge",
        "a",
        "Acknowledge",
        "Acknowledge this cause, or take that back",
        dangerous=True,
        needs=A_STATEFUL_CAUSE,
        shown=True,
    ),
    KeyAction(
        "causes.snooze",
        "S",
        "Snooze",
        "List this cause last until a time, until it doubles or spreads",
        dangerous=True,
        needs=A_STATEFUL_CAUSE,
        shown=False,
    ),
    KeyAction(
        "causes.note",
        "n",
        "Note",
        "Add a note to this cause",
        dangerous=True,
        needs=A_STATEFUL_CAUSE,
        shown=False,
    ),
    KeyAction(
        "causes.assign",
        "i",
        "Assign",
        "Name the owner of this cause",
        dangerous=True,
        needs=A_STATEFUL_CAUSE,
        shown=False,
    ),
    KeyAction(
        "causes.resolve",
        "x",
        "Resolve",
        "Mark this cause as resolved, or take that back",
        dangerous=True,
        needs=A_STATEFUL_CAUSE,
        shown=False,
    ),
    KeyAction(
        "causes.panel",
        "tab",
        "Panel",
        "Scroll the text below the list, or go back to the list",
        needs=A_PANEL,
        shown=False,
    ),
    KeyAction("causes.earlier", "comma", "Earlier", "Show the causes as they were", shown=False),
    KeyAction("causes.later", "full_stop", "Later", "Go forward in the recorded past", shown=False),
    KeyAction("causes.report", "R", "Report", "Write a hand-over report to a file", shown=False),
    KeyAction("causes.copy", "y", "Copy", "Copy the error", needs=A_CAUSE, shown=False),
    KeyAction("causes.runbook", "o", "Runbook", "Copy the runbook link", needs=A_CAUSE),
    KeyAction("trail.open", "enter", "Open", "Show this override with the outcome of each item", needs=AN_OVERRIDE),
    KeyAction("trail.verify", "v", "Verify", "Check that no record was altered"),
    KeyAction("trail.resume", "p", "Resume", "Resume this override", dangerous=True, needs=UNFINISHED),
    KeyAction("trail.undo", "z", "Undo", "Plan an undo of this override", dangerous=True, needs=AN_OVERRIDE),
    KeyAction(
        "trail.panel",
        "tab",
        "Panel",
        "Scroll the text below the list, or go back to the list",
        needs=A_PANEL,
        shown=False,
    ),
    KeyAction("trail.report", "R", "Report", "Write a report about this override", needs=AN_OVERRIDE, shown=False),
    KeyAction("trail.export", "e", "Export", "Write all records to a file", shown=False),
    KeyAction("trail.copy", "y", "Copy", "Copy the override id", needs=AN_OVERRIDE, shown=False),
    KeyAction("proposals.open", "enter", "Open", "Show the plan, and what has changed since", needs=A_PROPOSAL),
    KeyAction(
        "proposals.approve", "a", "Approve", "Confirm the plan of this proposal", dangerous=True, needs=AN_OPEN_PROPOSAL
    ),
    KeyAction(
        "proposals.decline",
        "x",
        "Reject/withdraw",
        "Reject this proposal, or withdraw it if it is yours",
        dangerous=True,
        needs=AN_OPEN_PROPOSAL,
    ),
    KeyAction(
        "proposals.panel",
        "tab",
        "Panel",
        "Scroll the text below the list, or go back to the list",
        needs=A_PANEL,
        shown=False,
    ),
    KeyAction("proposals.copy", "y", "Copy", "Copy the proposal id", needs=A_PROPOSAL, shown=False),
    KeyAction("override.open", "enter", "Items", "List the items behind this number", needs=A_NUMBER),
    KeyAction(
        "override.pause",
        "p",
        "Pause/resume",
        "Pause, continue or resume this override",
        dangerous=True,
        needs=UNFINISHED,
    ),
    KeyAction(
        "override.stop", "x", "Stop", "Stop after the current chunk; it can be resumed", needs=A_RUNNING_OVERRIDE
    ),
    KeyAction("override.undo", "z", "Undo", "Plan an undo of this override", dangerous=True, needs=UNDOABLE),
    KeyAction(
        "override.panel",
        "tab",
        "Panel",
        "Scroll the text below the list, or go back to the list",
        needs=A_PANEL,
        shown=False,
    ),
    KeyAction("override.report", "R", "Report", "Write a report about this override to a file", shown=False),
    KeyAction("override.export", "e", "Export", "Write the outcome and result of every item to a file", shown=False),
    KeyAction("override.copy", "y", "Copy", "Copy the override id", shown=False),
    KeyAction("override_items.open", "enter", "Open", "Show everything about this item", needs=AN_ITEM),
    KeyAction("override_items.copy", "y", "Copy", "Copy the key of this item", needs=AN_ITEM),
    KeyAction("item.requeue", "r", "Requeue", "Plan a requeue of this item", dangerous=True),
    KeyAction("item.discard", "d", "Discard", "Plan a discard of this item", dangerous=True, shown=False),
    KeyAction("item.search", "slash", "Search", "Search in the text of this tab", at_once=True),
    KeyAction("item.next_match", "n", "Next match", "Go to the next match", needs=A_SEARCH, shown=False),
    KeyAction("item.previous_match", "N", "Previous match", "Go to the previous match", needs=A_SEARCH, shown=False),
    KeyAction("item.next_item", "right_square_bracket,J", "Next item", "Go to the next item of the list", needs=A_LIST),
    KeyAction(
        "item.previous_item",
        "left_square_bracket,K",
        "Previous item",
        "Go to the previous item of the list",
        needs=A_LIST,
        shown=False,
    ),
    KeyAction("item.other_text", "tab", "Other text", "Scroll the error, or go to the next tab", shown=False),
    KeyAction("item.next_tab", "l,right", "Next tab", "Go to the next tab"),
    KeyAction("item.previous_tab", "h,left", "Previous tab", "Go to the previous tab", shown=False),
    KeyAction("item.copy", "y", "Copy error", "Copy the whole error", needs=AN_ERROR),
    KeyAction("item.copy_key", "Y", "Copy key", "Copy the key of this item", shown=False),
    KeyAction("item.same_cause", "C", "Same cause", "List all failures with this cause", needs=AN_ERROR),
    KeyAction("item.runbook", "o", "Runbook", "Copy the runbook link", needs=A_RUNBOOK, shown=False),
)


MOVES: Mapping[str, str] = {
    "Up": "up,k",
    "Down": "down,j",
    "Page up": "pageup,ctrl+b",
    "Page down": "pagedown,ctrl+f",
    "First": "home,g",
    "Last": "end,G",
}
"""Keys to move in lists and scroll in texts; g is pressed twice. A keymap does not change them."""


def actions_of(place: str) -> tuple[KeyAction, ...]:
    return tuple(action for action in CATALOGUE if action.place == place)


def action_named(place: str, name: str) -> KeyAction | None:
    return next((action for action in CATALOGUE if action.place == place and action.name == name), None)
