"""The names of the themes, without loading Textual."""

from __future__ import annotations

from console.core.faults import ConfigFault
from console.core.text import did_you_mean, neutralise

THEMES = frozenset(
    (
        *("retriage-night", "retriage-day", "ansi"),
        *("ansi-dark", "ansi-light", "atom-one-dark", "atom-one-light", "catppuccin-frappe", "catppuccin-latte"),
        *("catppuccin-macchiato", "catppuccin-mocha", "dracula", "flexoki", "gruvbox", "monokai", "nord"),
        *("rose-pine", "rose-pine-dawn", "rose-pine-moon", "solarized-dark", "solarized-light"),
        *("textual-dark", "textual-light", "tokyo-night"),
    )
)
"""Retriage's own and Textual's."""


def checked_theme(name: str) -> str:
    """The name, if there is such a theme; otherwise raises a ConfigFault."""
    if name in THEMES:
        return name
    raise ConfigFault(f"Unknown theme '{neutralise(name, 40)}'", where="console.theme", fix=did_you_mean(name, THEMES))
