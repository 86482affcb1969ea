"""A glance at the config: what the first frame needs of it, without the libraries that judge it.

Nothing here is believed. The strict reader reads the file again behind the first frame, and what it says holds.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from console.core.paths import expanded
from console.core.themes import THEMES
from console.places import config_folder

MAX_BYTES = 256 * 1024


class Glance(NamedTuple):
    """What it seems to say."""

    theme: str | None = None
    read_only: bool = False
    backends: tuple[tuple[str, str], ...] = ()
    """Name and plugin of each."""


def glance(path: Path) -> Glance:
    """Whatever is wrong with the file is told by whoever reads it in earnest."""
    import yaml

    try:
        with path.open("rb") as file:
            found = yaml.load(file.read(MAX_BYTES), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        console, backends = found.get("console") or {}, found.get("backends") or {}
        theme = console.get("theme")
        names = tuple((str(name), str(each["plugin"])) for name, each in backends.items())
        known = isinstance(theme, str) and theme in THEMES
        return Glance(theme if known else None, console.get("read_only") is True, names)
    except (OSError, yaml.YAMLError, AttributeError, KeyError, TypeError, ValueError, RecursionError):
        return Glance()


def find_config(explicit: Path | None = None) -> Path | None:
    """The file to use: the one asked for, else RETRIAGE_CONFIG, else the XDG place if it is there."""
    if explicit is not None:
        return explicit
    if named := os.environ.get("RETRIAGE_CONFIG"):
        return expanded(named)
    default = config_folder() / "config.yaml"
    return default if default.is_file() else None
