"""A keymap of the config: its keys under the names Textual gives them, and everything that is wrong with it."""

from __future__ import annotations

import string
import unicodedata
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

_RENAMED = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
"""Where Textual finds Unicode's name of a character too odd."""


def _character(character: str) -> str:
    """Textual's name of a character: itself, or what Unicode calls it."""
    if character.isalnum():
        return character
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    return _RENAMED.get(name, name)


CHARACTERS: Mapping[str, str] = {_character(character): character for character in string.punctuation}
"""Those that have a name on every keyboard, by it."""

_CONTROL_SPACE = "ctrl+@"
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
    return {id: ",".join(str(textual_name(key)) for key in _each(keys)) for id, keys in keymap.items()}


def wrong_keys(keymap: Mapping[str, str]) -> Iterator[WrongKey]:
    """Everything that is wrong with it; keys that clash are looked for among those that exist."""
    ids = [action.id for action in CATALOGUE]
    usable: dict[str, str] = {}
    for id, keys in keymap.items():
        named = {key: textual_name(key) for key in _each(keys)}
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


def textual_name(key: str) -> str | None:
    """What Textual calls it when it is pressed; None if there is no such key."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    if key == _CONTROL_SPACE:
        return key
    if len(set(modifiers) & _MODIFIERS) < len(modifiers):
        return None
    if len(last) == 1 and last.isprintable():
        return _typed(modifiers, last)
    return "+".join((*sorted(modifiers), last)) if last in NAMED_KEYS or last in CHARACTERS else None


def _typed(modifiers: list[str], character: str) -> str | None:
    """A character arrives as what shift makes of it, and what that is for one that is no letter only a keyboard knows;
    with ctrl a letter is always small."""
    if modifiers == ["shift"]:
        return character.upper() if character.isalpha() else None
    if "ctrl" in modifiers and character.isupper():
        return None
    return "+".join((*sorted(modifiers), _character(character)))


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
