"""Excerpts of long errors."""

from __future__ import annotations

LIMIT = 4096
"""How many characters of an error lists, causes and patterns use. Only details and filters use more."""
HALF = LIMIT // 2
GAP = "\n  … "
"""Stands for the middle of a long error. It is indented, so that what follows is not the line a traceback ends with."""


def excerpt(error: str) -> str:
    """The error, or the beginning and the end of a long one: a Python traceback names its exception last."""
    return error if len(error) <= LIMIT else f"{error[:HALF]}{GAP}{error[-HALF:]}"
