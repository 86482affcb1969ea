"""The names of the themes: what a config may say, known without loading one."""

from __future__ import annotations

from console.core.faults import ConfigFault
from console.core.text import closest, neutralise

THEMES = frozenset(
    (
        *("retriage-night", "retriage-day", "ansi"),
        *("ansi-dark", "ansi-light", "atom-one-dark", "atom-one-light", "catppuccin-frappe", "catppuccin-latte"),
        *("catppuccin-macchiato", "catppuccin-mocha", "dracula", "flexoki", "gruvbox", "monokai", "nord"),
        *("rose-pine", "rose-pine-dawn", "rose-pine-moon", "solarized-dark", "solarized-light"),
        *("textual-dark", "textual-light", "tokyo-night"),
    )
)
"""Ours and Textual's."""


def checked_theme(name: str) -> str:
    """A theme that exists; a ConfigFault names those that do."""
    if name in THEMES:
        return name
    close = closest(name, THEMES)
    fix = f"Did you mean {close}?" if close else f"Write one of {', '.join(sorted(THEMES))}."
    raise ConfigFault(f"there is no theme '{neutralise(name, 40)}'", where="console.theme", fix=fix)
