"""Tells a person who looks elsewhere that something has ended: the terminal's bell, and a desktop notification."""

from __future__ import annotations

from collections.abc import Mapping

from console.ui import safe

_LONGEST = 200
_BELL = "\a"
_PLAIN_TERMINALS = ("linux", "dumb", "vt100", "vt220")
"""Terminals that would print the sequence of a notification."""
_URXVT_STYLE = ("rxvt", "foot")


def desktop_notification(text: str, environment: Mapping[str, str]) -> str:
    """The sequence that makes the terminal show a desktop notification; empty where it would print it.

    Terminals of the VTE and urxvt families know OSC 777, most others OSC 9. Only one is sent: some know both.
    """
    terminal = environment.get("TERM", "")
    if not terminal or terminal in _PLAIN_TERMINALS:
        return ""
    shown = safe.line(text, _LONGEST).replace(";", ",")
    if "VTE_VERSION" in environment or terminal.startswith(_URXVT_STYLE):
        return f"\x1b]777;notify;Retriage;{shown}{_BELL}"
    return f"\x1b]9;Retriage: {shown}{_BELL}"
