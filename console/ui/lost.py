"""A terminal may vanish: an ssh session is lost, a window is closed. Then writing to it fails, and must not matter.

Textual writes in a thread of its own that ends with the first error. Whoever still has something to say then waits
for it for ever: the console would never end, nor let go of its leases.
"""

from __future__ import annotations

from contextlib import suppress
from typing import IO, Any, cast

from textual.driver import Driver


class Steady:
    """A terminal's file; what it cannot take any more is lost with it."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.fileno = file.fileno
        self.isatty = file.isatty

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._file.flush()


def steadied(driver: type[Driver]) -> type[Driver]:
    """The same driver, whichever Textual chose, over a steady file; one without a file of its own stays as it is."""

    class SteadyDriver(driver):  # type: ignore[misc, valid-type]
        def __init__(self, *arguments: Any, **more: Any) -> None:
            super().__init__(*arguments, **more)
            file = getattr(self, "_file", None)
            if file is not None:
                self._file = cast("IO[str]", Steady(file))

    return SteadyDriver
