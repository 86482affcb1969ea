"""The stylesheet, parsed once per theme. Textual's own parses everything again whenever a screen brings its part."""

from __future__ import annotations

from textual.css.stylesheet import Stylesheet


class Sheet(Stylesheet):
    """What is new is parsed when it is asked for; the rest only when the colours have changed."""

    _changed = False

    def set_variables(self, variables: dict[str, str]) -> None:
        if variables != self._variables:
            self._changed = True
            super().set_variables(variables)

    def reparse(self) -> None:
        if self._changed:
            super().reparse()
            self._changed = False
