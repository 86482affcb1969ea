"""Views saved from the console, beside those of the config: one small file in the state folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from console.core.faults import Fault, Refused
from console.core.paths import expanded

_LARGEST = 256 * 1024


def place() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return expanded(state, Refused) / "retriage" / "views.json"


def saved() -> dict[str, str]:
    """What was saved; a file that cannot be understood is as good as none."""
    try:
        if place().stat().st_size > _LARGEST:
            return {}
        found = json.loads(place().read_text(encoding="utf-8"))
    except (Fault, OSError, ValueError):
        return {}
    return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}


def known(configured: Mapping[str, str]) -> dict[str, str]:
    """Those of the config, and those that were saved."""
    return {**configured, **saved()}


def save(name: str, text: str) -> None:
    """Add or change one."""
    views: Mapping[str, str] = {**saved(), name: text}
    path = place()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump(views, file, indent=1)
        beside.replace(path)
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from None
