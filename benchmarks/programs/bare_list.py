"""The triage list alone, as the console begins: nothing that is imported is garbage, so none is collected meanwhile,
and no package may listen in on a config."""

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
