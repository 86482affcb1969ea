"""A keymap of the config: its keys under the names Textual gives them, and everything that is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from console.core.catalogue import CATALOGUE, EVERYWHERE, MOVES, PLACES, actions_of
from console.core.faults import ConfigFault
from console.core.text import closest, neutralise

NAMED_KEYS = frozenset(
    (
        *("escape", "enter", "tab", "space", "backspace", "delete", "insert"),
        *("up", "down", "left", "right", "home", "end", "pageup", "pagedown"),
        *(f"f{number}" for number in range(1, 25)),
    )
)
"""Keys that are no character."""

_CHARACTERS = {"?": "question_mark", "/": "slash", " ": "space", ".": "full_stop", "+": "plus", "-": "minus"}
_MODIFIERS = {"ctrl", "shift", "alt"}
_PALETTE = "ctrl+p"


class WrongKey(NamedTuple):
    """One thing to correct: at which action, what, and what would fit."""

    action: str
    what: str
    fix: str


def checked_keymap(keymap: Mapping[str, str]) -> dict[str, str]:
    """A keymap Textual can take: a ConfigFault names an action or a key that does not exist, or two that clash."""
    for wrong in wrong_keys(keymap):
        raise ConfigFault(wrong.what, where=f"console.keymap.{wrong.action}", fix=wrong.fix)
    return {id: ",".join(str(_named(key)) for key in _each(keys)) for id, keys in keymap.items()}


def wrong_keys(keymap: Mapping[str, str]) -> Iterator[WrongKey]:
    """Everything that is wrong with it; keys that clash are looked for among those that exist."""
    ids = [action.id for action in CATALOGUE]
    usable: dict[str, str] = {}
    for id, keys in keymap.items():
        named = {key: _named(key) for key in _each(keys)}
        if id not in ids:
            close = closest(id, ids)
            fix = f"Did you mean {close}?" if close else f"Actions are {', '.join(ids)}."
            yield WrongKey(id, "there is no such action", fix)
            continue
        usable[id] = ",".join(name for name in named.values() if name is not None)
        if missing := [key for key, name in named.items() if name is None]:
            yield WrongKey(id, f"'{neutralise(missing[0], 40)}' is no key", "Write one as r, R, f5, ctrl+r or space.")
    yield from _clashes(usable)


def _each(keys: str) -> list[str]:
    return [key.strip() for key in keys.split(",")]


def _named(key: str) -> str | None:
    """Textual's name of it; None if there is no such key."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    last = _CHARACTERS.get(last, last)
    known = (len(last) == 1 and last.isprintable()) or last in NAMED_KEYS or last in _CHARACTERS.values()
    return "+".join((*modifiers, last)) if known and set(modifiers) <= _MODIFIERS else None


def _clashes(keymap: Mapping[str, str]) -> Iterator[WrongKey]:
    moves = {key: f"moving about ({name.lower()})" for name, keys in MOVES.items() for key in keys.split(",")}
    told = set()
    for place in PLACES:
        taken = {_PALETTE: "the palette"} if place == "overview" else {_PALETTE: "the palette", **moves}
        for action in (*actions_of(place), *actions_of(EVERYWHERE)):
            for key in filter(None, keymap.get(action.id, action.key).split(",")):
                other = taken.setdefault(key, action.id)
                changed, stays = (action.id, other) if action.id in keymap else (other, action.id)
                if other != action.id and changed not in told:
                    told.add(changed)
                    yield WrongKey(changed, f"{key} is taken by {stays}", "Choose another key, or move that one too.")
