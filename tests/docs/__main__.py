"""Writes the generated parts of the manual again: `python -m tests.docs`."""

from __future__ import annotations

from tests.docs import systems
from tests.docs.pages import PAGES, ROOT, with_code
from tests.docs.reference import page


def main() -> None:
    (ROOT / "docs/commands-and-keys.md").write_text(page())
    systems.PAGE.write_text(systems.page())
    for path in PAGES:
        text = path.read_text()
        if (current := with_code(text)) != text:
            path.write_text(current)


if __name__ == "__main__":
    main()
