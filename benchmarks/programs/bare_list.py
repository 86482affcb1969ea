"""The failures list alone, started as the console is: without garbage collection and pydantic plugins."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path


def main() -> None:
    gc.disable()
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    from benchmarks.programs.listing import ListApp

    ListApp(Path(sys.argv[1])).run()


if __name__ == "__main__":
    main()
