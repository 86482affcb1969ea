"""What the palette and the go-to dialog offer, and what a choice does: commands, screens, systems, views and themes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from console.actions.catalogue import EVERYWHERE, PLACES, KeyAction, actions_of
from console.ui.actions import key_words
from console.ui.screens.base import BaseScreen
from console.ui.screens.pick import Choice
from console.ui.views import SavedViews

if TYPE_CHECKING:
    from console.ui.app import Console

_NOT_OFFERED = frozenset({"app.palette", "app.back"})


def commands(app: Console) -> list[Choice]:
    """The actions of this screen and of every screen, those of the other screens, then the themes."""
    here = app.screen.PLACE if isinstance(app.screen, BaseScreen) else ""
    found = [_action(app, action) for action in actions_of(here)]
    found += [_action(app, action) for action in actions_of(EVERYWHERE) if action.id not in _NOT_OFFERED]
    elsewhere = [action for place in _other_places(app, here) for action in actions_of(place)]
    found += [_elsewhere(app, action) for action in elsewhere if _works_from_other_screens(action)]
    found += [_only_there(app, action) for action in elsewhere if not _works_from_other_screens(action)]
    themes = sorted(app.available_themes)
    return found + [Choice(f"theme {name}", f"Theme: {name}", _theme_hint(app, name)) for name in themes]


async def run_command(app: Console, chosen: str | None) -> None:
    """Do what was chosen among `commands`."""
    kind, _, rest = (chosen or "").partition(" ")
    if kind == "theme":
        app.theme = rest
    elif kind == "action":
        place, _, name = rest.partition(".")
        if place in app.MODES:
            await app.show_place(place)
        await app.run_action(name, app if place == EVERYWHERE else app.screen)


def _other_places(app: Console, here: str) -> list[str]:
    places = [*app.places(), *(["override"] if app.live_overrides.latest is not None else [])]
    return [place for place in places if place != here]


def _works_from_other_screens(action: KeyAction) -> bool:
    """Not if it needs something under the cursor: on another screen nobody sees what that is."""
    return action.place != "override" and not (action.needs or action.dangerous or action.saves)


def _action(app: Console, action: KeyAction) -> Choice:
    screen = app.screen
    why = screen.why_not(action) if isinstance(screen, BaseScreen) else ""
    return Choice(f"action {action.id}", action.label, action.help, _key(app, action), why)


def _elsewhere(app: Console, action: KeyAction) -> Choice:
    return Choice(f"action {action.id}", f"{PLACES[action.place]}: {action.label}", action.help, _keys(app, action))


def _only_there(app: Console, action: KeyAction) -> Choice:
    """An action on what is under the cursor of another screen: it is found here, but has to be used there."""
    found = _elsewhere(app, action)
    there, key = found.key.split(" ", 1)
    return found._replace(why_not=f"Press {there} for {PLACES[action.place]}, then {key}.")


def _keys(app: Console, action: KeyAction) -> str:
    """The key of the screen, then the one of the action."""
    return f"{key_words(app.key_of_place(action.place))} {_key(app, action)}"


def _key(app: Console, action: KeyAction) -> str:
    return key_words(app.keys_of(action)[0])


def _theme_hint(app: Console, name: str) -> str:
    return "in use" if name == app.theme else ""


def destinations(app: Console) -> list[Choice]:
    """Screens, systems and views to go to."""
    return [*_places(app), *_systems(app), *_views(app)]


async def go_to(app: Console, chosen: str | None) -> None:
    """Go to what was chosen among `destinations`, or to the item whose key was typed."""
    kind, _, rest = (chosen or "").partition(" ")
    if kind == "place":
        await app.show_place(rest)
    elif kind == "filter":
        app.show_failures(rest)
    elif chosen:
        app.open_key(chosen)


def _places(app: Console) -> Iterator[Choice]:
    for place in app.places():
        yield Choice(f"place {place}", PLACES[place], "screen", app.key(place))


def _systems(app: Console) -> Iterator[Choice]:
    for name in app.session.names:
        yield Choice(f"filter backend:{name}", name, "system")


def _views(app: Console) -> Iterator[Choice]:
    for name, text in SavedViews(app.session).known().items():
        yield Choice(f"filter {text}", name, f"view: {text}")
