"""Makes untrusted text safe to show. Everything from a backend, config, file or exception goes through here.

Textual takes a plain `str` for markup in almost every widget, and passes control bytes on to the terminal.
"""

from __future__ import annotations

import re

from rich.cells import cell_len, set_cell_size
from textual.content import Content
from textual.style import Style

from console.core.text import CELL_LIMIT, DETAIL_LIMIT, neutralise

__all__ = ["address", "block", "fit", "line", "lines", "link", "phrase", "shown"]

_ADDRESS = re.compile(r"https?://[!-~]{1,2000}")


def line(text: str, limit: int = CELL_LIMIT) -> str:
    """One harmless line. Still a `str`: for segments and `markup=False`, never for a widget's argument."""
    return neutralise(text, limit)


def lines(text: str, limit: int = DETAIL_LIMIT) -> list[str]:
    """Harmless lines of a longer text."""
    return neutralise(text, limit, multiline=True).split("\n")


def shown(text: str, style: str = "", limit: int = CELL_LIMIT) -> Content:
    """One line as content."""
    return Content.styled(line(text, limit), style) if style else Content(line(text, limit))


def block(text: str, limit: int = DETAIL_LIMIT) -> Content:
    """Several lines as content."""
    return Content("\n".join(lines(text, limit)))


def phrase(template: str, **values: object) -> Content:
    """Our markup with untrusted values in it: `phrase("[b]$name[/b] is gone", name=…)`."""
    given = {name: value if isinstance(value, Content) else line(str(value)) for name, value in values.items()}
    return Content.from_markup(template, **given)


def address(text: str) -> str:
    """The text if it is a plain http(s) address, which a terminal may open; else empty."""
    return text if _ADDRESS.fullmatch(text) else ""


def link(text: str, to: str, style: str = "") -> Content:
    """One line that is a link in terminals that support it, if the address is plain."""
    shown_text = shown(text, style)
    return shown_text.stylize(Style(link=address(to))) if address(to) else shown_text


def fit(text: str, width: int, right: bool = False) -> str:
    """A harmless line in exactly `width` cells, with an ellipsis where it is cut."""
    used = len(text) if text.isascii() else cell_len(text)
    if used == width:
        return text
    if used < width:
        return " " * (width - used) + text if right else text + " " * (width - used)
    if width <= 1:
        return "…"[:width]
    return (text[: width - 1] if text.isascii() else set_cell_size(text, width - 1)) + "…"
