"""Turns the catalogue into Textual bindings, and its keys into words."""

from __future__ import annotations

from textual.binding import Binding

from console.actions.catalogue import EVERYWHERE, KeyAction, actions_of
from console.actions.keymap import CHARACTERS


def bindings_of(place: str) -> list[Binding]:
    return [_binding(action) for action in actions_of(place)]


def _binding(action: KeyAction) -> Binding:
    called = action.id if action.place == EVERYWHERE else action.name
    return Binding(
        action.key,
        called,
        action.label,
        show=action.shown,
        tooltip=action.help,
        id=action.id,
        priority=action.at_once,
    )


_SHOWN_KEYS = {**CHARACTERS, "escape": "esc", "down": "↓", "up": "↑", "left": "←", "right": "→"}


def key_words(keys: str) -> str:
    """Keys as they are labelled on a keyboard."""
    return " ".join(_SHOWN_KEYS.get(key, key.replace("ctrl+", "^")) for key in keys.split(","))
