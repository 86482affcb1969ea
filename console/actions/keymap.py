"""Checks the keymap of a config, and translates its keys to the names Textual uses."""

from __future__ import annotations

import string
import unicodedata
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from console.actions.catalogue import CATALOGUE, EVERYWHERE, MOVES, PLACES, actions_of
from console.core.faults import ConfigFault
from console.core.text import did_you_mean, neutralise

NAMED_KEYS = frozenset(
    (
        *("escape", "enter", "tab", "space", "backspace", "delete", "insert"),
        *("up", "down", "left", "right", "home", "end", "pageup", "pagedown"),
        *(f"f{number}" for number in range(1, 25)),
    )
)
"""Keys that are not characters."""

_RENAMED = {
    "solidus": "slash",
    "reverse_solidus": "backslash",
    "commercial_at": "at",
    "hyphen_minus": "minus",
    "plus_sign": "plus",
    "low_line": "underscore",
}
"""Where Textual's name differs from the Unicode name of a character."""


def _character(character: str) -> str:
    """Textual's name of a character: a letter or digit itself, otherwise its Unicode name."""
    if character.isalnum():
        return character
    name = unicodedata.name(character, character).lower().replace("-", "_").replace(" ", "_")
    return _RENAMED.get(name, name)


CHARACTERS: Mapping[str, str] = {_character(character): character for character in string.punctuation}
"""Textual's names of the punctuation characters."""

_CONTROL_SPACE = "ctrl+@"
_MODIFIERS = {"ctrl", "shift", "alt"}


class WrongKey(NamedTuple):
    """A mistake in a keymap: the action, what is wrong, and what to do."""

    action: str
    what: str
    fix: str


def checked_keymap(keymap: Mapping[str, str]) -> dict[str, str]:
    """The keymap with Textual's names. Raises a ConfigFault for an unknown action, an unknown key or a clash."""
    for wrong in wrong_keys(keymap):
        raise ConfigFault(wrong.what, where=f"console.keymap.{wrong.action}", fix=wrong.fix)
    return {id: ",".join(str(textual_name(key)) for key in _each(keys)) for id, keys in keymap.items()}


def wrong_keys(keymap: Mapping[str, str]) -> Iterator[WrongKey]:
    """Every mistake in a keymap. Clashes are looked for among the keys that exist."""
    ids = [action.id for action in CATALOGUE]
    usable: dict[str, str] = {}
    for id, keys in keymap.items():
        named = {key: textual_name(key) for key in _each(keys)}
        if id not in ids:
            yield WrongKey(id, "unknown action", did_you_mean(id, ids))
            continue
        usable[id] = ",".join(name for name in named.values() if name is not None)
        if missing := [key for key, name in named.items() if name is None]:
            what = f"unknown key '{neutralise(missing[0], 40)}'"
            yield WrongKey(id, what, "Write a key such as r, R, f5, ctrl+r or space.")
    yield from _clashes(usable)


def _each(keys: str) -> list[str]:
    return [key.strip() for key in keys.split(",")]


def textual_name(key: str) -> str | None:
    """Textual's name for a key; None if there is no such key."""
    *modifiers, last = key.split("+") if len(key) > 1 else [key]
    if key == _CONTROL_SPACE:
        return key
    if len(set(modifiers) & _MODIFIERS) < len(modifiers):
        return None
    if len(last) == 1 and last.isprintable():
        return _typed(modifiers, last)
    return "+".join((*sorted(modifiers), last)) if last in NAMED_KEYS or last in CHARACTERS else None


def _typed(modifiers: list[str], character: str) -> str | None:
    """The name of a typed character. Shift changes a letter to upper case, and other characters in a way that depends
    on the keyboard, so shift with those is refused. With ctrl a letter is always lower case."""
    if modifiers == ["shift"]:
        return character.upper() if character.isalpha() else None
    if "ctrl" in modifiers and character.isupper():
        return None
    return "+".join((*sorted(modifiers), _character(character)))


def _clashes(keymap: Mapping[str, str]) -> Iterator[WrongKey]:
    moves = {key: f"moving the cursor ({name.lower()})" for name, keys in MOVES.items() for key in keys.split(",")}
    reported = set()
    for place in PLACES:
        taken = dict(moves)
        for action in (*actions_of(place), *actions_of(EVERYWHERE)):
            for key in filter(None, keymap.get(action.id, action.key).split(",")):
                other = taken.setdefault(key, action.id)
                changed, stays = (action.id, other) if action.id in keymap else (other, action.id)
                if other != action.id and changed not in reported:
                    reported.add(changed)
                    what = f"{key} is already used for {stays}"
                    yield WrongKey(changed, what, "Choose another key, or change that one too.")
