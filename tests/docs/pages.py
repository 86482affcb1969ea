"""The pages of the manual, their examples, and the code they include."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [
    README,
    *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
INCLUDE = re.compile(r"<!-- code: (\S+) (.+?) -->\n```python\n(.*?)```\n", re.S)


class Block(NamedTuple):
    """One fenced example of a page."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """All examples in these languages, or in any."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M):
            line = text.count("\n", 0, match.start()) + 1
            found.append(Block(str(page.relative_to(ROOT)), line, match[1], match[2]))
    return [block for block in found if not languages or block.language in languages]


def section(path: str, title: str) -> str:
    """The code below a `# --- TITLE ---` line, up to the next such line."""
    text = (ROOT / path).read_text()
    found = re.search(rf"^ *# --- {re.escape(title)} -+\n(.*?)(?=^ *# --- |\Z)", text, re.S | re.M)
    assert found, f"{path} has no section {title!r}"
    return found[1].strip("\n") + "\n"


def with_code(text: str) -> str:
    """The page with its included code as the files have it now."""
    return INCLUDE.sub(
        lambda found: f"<!-- code: {found[1]} {found[2]} -->\n```python\n{section(found[1], found[2])}```\n", text
    )
