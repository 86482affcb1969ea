"""`${ENV}`, `${ENV:-default}` and `~` in config values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path

_REFERENCE = re.compile(r"\$\$\{|\$\{(?:([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\})?")
_SQLITE_HOME = re.compile(r"(sqlite(?:\+\w+)?:///)(~(?:/[^?]*)?)(\?.*)?", re.S)


class Unresolved(ValueError):
    """A `${…}` that has no value; the message says which and what to do."""


def interpolate(text: str, env: Mapping[str, str]) -> str:
    """`${NAME}` and `${NAME:-default}` replaced; an empty variable counts as unset. `$${` is a plain `${`."""

    def value(name: str, default: str | None) -> str:
        found = env.get(name) or default
        if found is None:
            raise Unresolved(f"${{{name}}} is not set or empty; set it, or write ${{{name}:-default}}")
        return found

    return _replace(text, value)


def literal_part(text: str) -> str:
    """What of the text stands in the file itself: variables left out, defaults kept."""
    return _replace(text, lambda _, default: default or "")


def _replace(text: str, value: Callable[[str, str | None], str]) -> str:
    def one(match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        if match[1] is None:
            raise Unresolved("${ needs a name and a }, as in ${NAME}; write $${ for a plain ${")
        return value(match[1], match[2])

    return _REFERENCE.sub(one, text)


def expand_home(text: str) -> str:
    """A leading `~/`, also in the path part of a sqlite URL, becomes the home folder."""
    if text == "~" or text.startswith("~/"):
        return _home() + text[1:]
    if match := _SQLITE_HOME.fullmatch(text):
        return f"{match[1]}{_home()}{match[2][1:]}{match[3] or ''}"
    return text


def _home() -> str:
    return os.environ.get("HOME") or str(Path.home())
