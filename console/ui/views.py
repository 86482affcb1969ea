"""Filters saved in the console, in a small file beside the trail. The config has its own views."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from console.core.faults import Refused
from console.core.session import Session
from console.xdg import is_of_another_user, replace_file, state_folder

_LARGEST = 256 * 1024


class SavedViews:
    """The saved views of one session."""

    def __init__(self, session: Session) -> None:
        self.file: Path = session.views_file or state_folder() / "views.json"
        self._configured = session.views

    def saved(self) -> dict[str, str]:
        """The saved views; none if the file cannot be read."""
        try:
            if self.file.stat().st_size > _LARGEST:
                return {}
            found = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return {str(name): str(text) for name, text in found.items()} if isinstance(found, dict) else {}

    def known(self) -> dict[str, str]:
        """The views of the config and the saved ones."""
        return {**self._configured, **self.saved()}

    def save(self, name: str, text: str) -> None:
        """Add or replace a saved view."""
        self._write({**self.saved(), name: text})

    def rename(self, name: str, new: str) -> None:
        """Give a saved view another name; its place among the others stays."""
        views = self._own(name)
        if new != name and new in self.known():
            raise Refused(f"There is already a view named '{new}'", fix="Choose another name.")
        self._write({new if one == name else one: text for one, text in views.items()})

    def delete(self, name: str) -> None:
        views = self._own(name)
        del views[name]
        self._write(views)

    def _own(self, name: str) -> dict[str, str]:
        views = self.saved()
        if name not in views:
            fix = "Change it in the config file." if name in self._configured else ""
            raise Refused(f"'{name}' is not a saved view", fix=fix)
        return views

    def _write(self, views: Mapping[str, str]) -> None:
        path = self.file
        if is_of_another_user(path):
            raise Refused(f"{path} belongs to another user")
        try:
            replace_file(path, json.dumps(views, indent=1))
        except OSError as error:
            raise Refused(f"{path} cannot be written: {error.strerror}") from None
