"""Filters saved in the console, in a small file of the state folder. The config has its own views."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from console.core.faults import Refused
from console.xdg import state_folder

_LARGEST = 256 * 1024


def views_file() -> Path:
    return state_folder() / "views.json"


def saved() -> dict[str, str]:
    """The saved views; none if the file cannot be read."""
    try:
        if views_file().stat().st_size > _LARGEST:
            return {}
        found = json.loads(views_file().read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def known(configured: Mapping[str, str]) -> dict[str, str]:
    """The views of the config and the saved ones."""
    return {**configured, **saved()}


def save(name: str, text: str) -> None:
    """Add or replace a saved view."""
    views: Mapping[str, str] = {**saved(), name: text}
    path = views_file()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}.new")
        temporary.unlink(missing_ok=True)  # of a killed process with the same number
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(views, file, indent=1)
        temporary.replace(path)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None
