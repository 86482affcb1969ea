"""Mistakes in a config file: each one line, all of them at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from console.core.faults import ConfigFault
from console.core.text import closest

Loc = tuple[str | int, ...]
"""Where in the config: the keys and list positions from the top."""


class Mistake(NamedTuple):
    """One thing to correct: where, and what would fit. Never quotes a value; it may be a secret."""

    line: int
    loc: Loc
    what: str

    def shown(self, file: str) -> str:
        where = f"{file}:{self.line}" if self.line else file
        return f"{where}: {dotted(self.loc)}: {self.what}" if self.loc else f"{where}: {self.what}"


class UnusableConfig(ConfigFault):
    """The configuration is not usable"""

    def __init__(self, file: str, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(set(mistakes), key=lambda m: (m.line, str(m.loc), m.what)))
        super().__init__("\n".join(mistake.shown(file) for mistake in self.mistakes))

    def __str__(self) -> str:
        return self.detail


def dotted(loc: Loc) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part)}"
    return text.removeprefix(".")


def printable(name: str) -> str:
    """A name fit for one line of a terminal: short, without control or invisible characters."""
    short = name if len(name) <= 60 else f"{name[:59]}…"
    return short if short.isprintable() else repr(short)[1:-1]


def unknown_key(name: str, known: Iterable[str]) -> str:
    names = list(known)
    return f"not a known key; {suggestion(name, names)}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """`did you mean …?`, or everything that would fit."""
    names = list(known)
    if close := closest(name.lower(), names):
        return f"did you mean {close}?"
    return f"known here: {', '.join(sorted(names))}" if names else "nothing is known here"
