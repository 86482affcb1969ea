"""Finds the config file, and reads what the console's first frame shows of it.

The strict reader (`console.settings`) takes as long to load as Textual, so it runs behind the first frame and
reports every mistake. `peek` ignores mistakes and validates nothing; only names and a theme are taken from it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from console.actions.themes import THEMES
from console.core.paths import expanded
from console.xdg import config_folder

MAX_BYTES = 256 * 1024


class Peek(NamedTuple):
    """What the first frame shows."""

    systems: tuple[str, ...] = ()
    theme: str | None = None


def peek(path: Path) -> Peek:
    """The names of the systems and the theme; nothing if the file cannot be read."""
    import yaml

    if not path.is_file():  # a pipe would wait for its writer
        return Peek()
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES)
        config = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        theme = (config.get("console") or {}).get("theme")
        return Peek(tuple(map(str, config["backends"])), theme if theme in THEMES else None)
    except (OSError, ValueError, TypeError, LookupError, AttributeError, RecursionError, yaml.YAMLError):
        return Peek()


def find_config(explicit: Path | None = None) -> Path | None:
    """The file to use: the one named, else `RETRIAGE_CONFIG`, else `config.yaml` in the config folder if it exists."""
    if explicit is not None:
        return explicit
    if named := os.environ.get("RETRIAGE_CONFIG"):
        return expanded(named)
    default = config_folder() / "config.yaml"
    return default if default.is_file() else None
