"""The triage list alone, as the console begins: somebody is sent ahead to read, nothing that is imported is garbage, so
none is collected meanwhile, and no package may listen in on a config."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from console.core.query import Page


def _first_page(path: Path) -> Iterator[tuple[str, Page]]:
    from datetime import UTC, datetime

    from benchmarks.opening import NAME, open_queue
    from console.core.backend import PageRequest
    from console.core.query import Filter

    yield NAME, open_queue(path, read_only=True).page(PageRequest(Filter(), datetime.now(UTC)))


def main() -> None:
    gc.disable()
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    from console.ahead import send

    path = Path(sys.argv[1])
    ahead = send(lambda: _first_page(path))
    from benchmarks.programs.listing import ListApp

    ListApp(path, ahead).run()


if __name__ == "__main__":
    main()
