"""One module looks up the user's folders."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def modules_with(pattern: str, *folders: str) -> Iterator[str]:
    found = re.compile(pattern, re.M)
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if found.search(path.read_text()):
                yield str(path.relative_to(ROOT))


def test_only_xdg_looks_up_the_folders() -> None:
    assert list(modules_with(r"platformdirs|XDG_\w+_HOME[\"']", "console", "plugins")) == ["console/xdg.py"]
