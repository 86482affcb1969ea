"""The console's own themes. Colour is used only where it means something."""

from __future__ import annotations

from textual.theme import BUILTIN_THEMES, Theme

from console.actions.themes import checked_theme

NIGHT = Theme(
    name="retriage-night",
    primary="#7fa7c9",
    secondary="#5d7590",
    accent="#d3a25f",
    warning="#d9a962",
    error="#e2777a",
    success="#86b58b",
    foreground="#c8ced8",
    background="#13161b",
    surface="#191d24",
    panel="#212731",
    boost="#ffffff08",
    dark=True,
    variables={
        "muted": "#7b8696",
        "calm": "#7fa7c9",
        "line": "#2f3743",
        "cursor": "#2a3646",
        "cursor-blurred": "#222933",
        "marked": "#d3a25f",
        "on-accent": "#13161b",
        "border": "#3c4858",
        "border-blurred": "#2f3743",
        "block-cursor-background": "#2a3646",
        "block-cursor-foreground": "#e8ecf2",
        "block-cursor-text-style": "none",
        "footer-background": "#191d24",
        "footer-key-foreground": "#d3a25f",
        "footer-description-foreground": "#8d98a8",
        "input-cursor-background": "#d3a25f",
        "input-selection-background": "#7fa7c9 30%",
        "scrollbar": "#2f3743",
        "scrollbar-hover": "#3c4858",
        "scrollbar-active": "#5d7590",
        "scrollbar-background": "#13161b",
        "scrollbar-background-hover": "#13161b",
        "scrollbar-background-active": "#13161b",
        "scrollbar-corner-color": "#13161b",
    },
)

DAY = Theme(
    name="retriage-day",
    primary="#2f6690",
    secondary="#5d7590",
    accent="#9a5b13",
    warning="#8f5b00",
    error="#b3323a",
    success="#2f7040",
    foreground="#2a2f37",
    background="#f6f5f1",
    surface="#eeece6",
    panel="#e3e0d8",
    boost="#00000008",
    dark=False,
    variables={
        "muted": "#6a7280",
        "calm": "#2f6690",
        "line": "#cfcbc0",
        "cursor": "#d6e2ec",
        "cursor-blurred": "#e3e6e8",
        "marked": "#9a5b13",
        "on-accent": "#f6f5f1",
        "border": "#9aa4b0",
        "border-blurred": "#cfcbc0",
        "block-cursor-background": "#d6e2ec",
        "block-cursor-foreground": "#1b2027",
        "block-cursor-text-style": "none",
        "footer-background": "#eeece6",
        "footer-key-foreground": "#9a5b13",
        "footer-description-foreground": "#596270",
        "scrollbar": "#cfcbc0",
        "scrollbar-hover": "#b9b4a7",
        "scrollbar-active": "#9aa4b0",
        "scrollbar-background": "#f6f5f1",
        "scrollbar-background-hover": "#f6f5f1",
        "scrollbar-background-active": "#f6f5f1",
        "scrollbar-corner-color": "#f6f5f1",
    },
)

ANSI = Theme(
    name="ansi",
    primary="ansi_blue",
    secondary="ansi_cyan",
    accent="ansi_yellow",
    warning="ansi_yellow",
    error="ansi_red",
    success="ansi_green",
    foreground="ansi_default",
    background="ansi_default",
    surface="ansi_default",
    panel="ansi_default",
    boost="ansi_default",
    dark=True,
    ansi=True,
    variables={
        **BUILTIN_THEMES["ansi-dark"].variables,
        "muted": "ansi_bright_black",
        "calm": "ansi_blue",
        "line": "ansi_bright_black",
        "cursor": "ansi_white",
        "cursor-blurred": "ansi_bright_black",
        "marked": "ansi_yellow",
        "on-accent": "ansi_black",
        "input-selection-foreground": "ansi_bright_white",
        "input-selection-background": "ansi_blue",
        "border": "ansi_bright_black",
        "border-blurred": "ansi_bright_black",
    },
)

OURS = (NIGHT, DAY, ANSI)
DEFAULT = NIGHT.name

_VARIABLES = ("muted", "calm", "line", "cursor", "cursor-blurred", "marked", "on-accent")


def fallbacks(theme: Theme) -> dict[str, str]:
    """Our own variables, for themes that do not define them."""
    nearest = ANSI if theme.ansi else NIGHT if theme.dark else DAY
    return {name: nearest.variables[name] for name in _VARIABLES}


def chosen(name: str | None) -> str:
    """The configured theme, or the default."""
    return DEFAULT if name is None else checked_theme(name)
