"""What core and the backends say in the words of the command line, in those of the console."""

from __future__ import annotations

SWITCHES = {
    "clear_terminal": "clear terminal",
    "allow_unrecoverable": "unrecoverable",
    "wake_task": "wake task",
    "back_off": "back off",
}
"""What an operator may insist on (a `Flag`), as the plan's dialog calls it."""

_HERE = {
    **{f"--{flag.replace('_', '-')}": f"“{name}” below" for flag, name in SWITCHES.items()},
    "use --limit": "mark fewer",
    "say --all if everything that needs eyes is meant": "mark all that match with A",
    "Confirm with --confirm": "To confirm, type",
    "Start it without --read-only": "Start the console without read-only",
    "copy it from `retriage list`": "y copies one in Failures",
    "Run `retriage trail verify`": "v in the Trail looks for what is wrong",
}


def here(text: str) -> str:
    """The same advice for somebody who sits at the console."""
    for there, instead in _HERE.items():
        text = text.replace(there, instead)
    return text
