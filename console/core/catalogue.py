"""The one catalogue of what can be done in the console and where: bindings, palette, help, the README's key table and
the check of a keymap come from it. Commands read it too, so it knows nothing of a screen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

EVERYWHERE = "app"


@dataclass(frozen=True, slots=True)
class Action:
    """One thing a person can do in one place. `id` is `place.name`, and what a keymap names."""

    id: str
    key: str
    label: str
    help: str
    dangerous: bool = False
    """Leads to a write; refused in a read-only console."""
    needs: str = ""
    """What must be there for it, in words; the place knows whether it is."""
    shown: bool = True
    """In the footer; everything is in the help and the palette."""
    at_once: bool = False
    """What is typed next is meant for where this leads: it is carried out before the next key is looked at."""

    @property
    def place(self) -> str:
        return self.id.partition(".")[0]

    @property
    def name(self) -> str:
        return self.id.partition(".")[2]


PLACES: Mapping[str, str] = {
    "overview": "Overview",
    "failures": "Failures",
    "groups": "Groups",
    "trail": "Trail",
    "item": "Item",
    "override": "Override",
    "run": "Run",
}

AN_ITEM = "an item under the cursor"
A_GROUP = "a group under the cursor"
AN_OVERRIDE = "an override under the cursor"
UNFINISHED = "an override that is not finished"
RUNNING = "a running override"
MARKS = "marked items"
NO_CONFIG = "a console without a configuration"

CATALOGUE: tuple[Action, ...] = (
    Action(
        "app.overview",
        "1",
        "Overview",
        "Every backend at a glance, and the retries that are coming",
        shown=False,
        at_once=True,
    ),
    Action("app.failures", "2", "Failures", "The triage list over all backends", shown=False, at_once=True),
    Action("app.groups", "3", "Groups", "Failures grouped by cause", shown=False, at_once=True),
    Action(
        "app.trail",
        "4",
        "Trail",
        "Every override and refusal, and whether the chain is whole",
        shown=False,
        at_once=True,
    ),
    Action("app.run", "5", "Run", "The override this console carries out", shown=False, at_once=True),
    Action("app.help", "question_mark", "Help", "The keys of this place"),
    Action(
        "app.go_to",
        "g",
        "Go to",
        "Open an item by its key, a backend, a saved view or a place",
        shown=False,
        at_once=True,
    ),
    Action("app.tour", "ctrl+t", "Tour", "Show or hide the guide through the first five minutes", shown=False),
    Action("app.read_again", "ctrl+r", "Read again", "Read everything on this screen again, now", shown=False),
    Action("app.quit", "q", "Quit", "Leave the console"),
    Action("overview.open", "enter", "Open", "Show this backend's failures", needs="a backend"),
    Action("overview.span", "h", "Hour/day", "Show the retries of the next hour, or of the next day"),
    Action("overview.next_card", "down,j", "Next", "Go to the next backend", shown=False),
    Action("overview.previous_card", "up,k", "Previous", "Go to the previous backend", shown=False),
    Action(
        "overview.demo",
        "d",
        "Demo",
        "Open the sandbox world, where nothing is configured",
        needs=NO_CONFIG,
    ),
    Action("overview.copy", "y", "Copy", "Copy where this backend is attached", shown=False),
    Action("failures.open", "enter", "Open", "Everything about the item under the cursor", needs=AN_ITEM),
    Action(
        "failures.filter",
        "slash",
        "Filter",
        "Write a filter; enter goes to the list, escape drops the change",
        at_once=True,
    ),
    Action("failures.mark", "space", "Mark", "Mark or unmark this item and go to the next", needs=AN_ITEM),
    Action(
        "failures.mark_range", "v", "Range", "Mark from the last marked item to this one", needs=AN_ITEM, shown=False
    ),
    Action("failures.mark_screen", "a", "All on screen", "Mark every item on the screen", needs=AN_ITEM, shown=False),
    Action(
        "failures.mark_matching",
        "A",
        "All matching",
        "Mark all that match this filter, read or not",
        needs=AN_ITEM,
        shown=False,
    ),
    Action("failures.unmark", "u", "Unmark", "Take all marks away", needs=MARKS, shown=False),
    Action(
        "failures.requeue",
        "r",
        "Requeue",
        "Plan to hand back what is marked, or this item",
        dangerous=True,
        needs=AN_ITEM,
    ),
    Action("failures.sort", "s", "Sort", "Sort by the next column; after the last, each backend's own order"),
    Action("failures.reverse", "S", "Reverse", "Turn the order round", shown=False),
    Action("failures.views", "f", "Views", "Choose a saved view"),
    Action("failures.save_view", "w", "Save view", "Give this filter a name to find it by again", shown=False),
    Action(
        "failures.copy", "y", "Copy", "Copy the keys of what is marked, or of this item", needs=AN_ITEM, shown=False
    ),
    Action("failures.export", "e", "Export", "Write what is marked, or all that match, to a file", shown=False),
    Action("groups.open", "enter", "Narrow", "Show the failures of this group", needs=A_GROUP),
    Action("groups.requeue", "r", "Requeue", "Plan to hand back all of this group", dangerous=True, needs=A_GROUP),
    Action("groups.filter", "slash", "Filter", "Group only what matches a filter", at_once=True),
    Action("groups.copy", "y", "Copy", "Copy the error of this group, as it was stored", needs=A_GROUP, shown=False),
    Action("groups.runbook", "o", "Runbook", "Copy the address of the page that says what to do", needs=A_GROUP),
    Action("trail.open", "enter", "Open", "Everything about this override, item by item", needs=AN_OVERRIDE),
    Action("trail.verify", "v", "Verify", "Check the whole chain, and name the first bad record"),
    Action(
        "trail.resume",
        "x",
        "Resume",
        "Settle what is unresolved and go on with this override",
        dangerous=True,
        needs=UNFINISHED,
    ),
    Action(
        "trail.undo",
        "z",
        "Undo",
        "Plan to take this override back, where nobody has claimed an item",
        dangerous=True,
        needs=AN_OVERRIDE,
    ),
    Action("trail.copy", "y", "Copy", "Copy the id of this override", needs=AN_OVERRIDE, shown=False),
    Action("override.back", "escape", "Back", "Go back to the trail"),
    Action("override.undo", "z", "Undo", "Plan to take this override back", dangerous=True),
    Action("override.resume", "x", "Resume", "Settle what is unresolved and go on", dangerous=True, needs=UNFINISHED),
    Action("override.copy", "y", "Copy", "Copy the id of this override", shown=False),
    Action("run.back", "escape", "Leave", "Leave it running and go back"),
    Action("run.pause", "p", "Pause", "Pause after the chunk that is being written", needs=RUNNING),
    Action("run.proceed", "c", "Go on", "Go on after a pause", needs=RUNNING),
    Action("run.stop", "x", "Stop", "Stop after the chunk that is being written; it can be resumed", needs=RUNNING),
    Action("item.back", "escape", "Back", "Go back to the list"),
    Action("item.requeue", "r", "Requeue", "Plan to hand this item back", dangerous=True),
    Action("item.search", "slash", "Search", "Look for a text in the error and the row", at_once=True),
    Action("item.next_match", "n", "Next match", "Go to the next place found", shown=False),
    Action("item.previous_match", "N", "Previous match", "Go to the place found before", shown=False),
    Action("item.copy", "y", "Copy error", "Copy the whole error, as it was stored"),
    Action("item.copy_key", "Y", "Copy key", "Copy the key of this item", shown=False),
    Action("item.same_cause", "c", "Same cause", "Show all failures with this cause"),
    Action("item.runbook", "o", "Runbook", "Copy the address of the page that says what to do", shown=False),
)


MOVES: Mapping[str, str] = {
    "Up": "up,k",
    "Down": "down,j",
    "Page up": "pageup,ctrl+b",
    "Page down": "pagedown,ctrl+f",
    "First": "home",
    "Last": "end,G",
}
"""The keys of lists themselves, and as far as they scroll also those of texts. A keymap does not change them."""


def actions_of(place: str) -> tuple[Action, ...]:
    return tuple(action for action in CATALOGUE if action.place == place)


def action_named(place: str, name: str) -> Action | None:
    return next((action for action in CATALOGUE if action.place == place and action.name == name), None)
