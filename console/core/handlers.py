"""What a handler returned or raised, as any store can keep it: it ran, and no loop ends because of what it said."""

from __future__ import annotations

import json
from collections.abc import Callable


def as_text(said: str) -> str:
    """Text that every column takes: what is not Unicode, and NUL, are written as escapes."""
    return said.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def as_json(result: object) -> str:
    """JSON that every column takes; what cannot be written so is shown as Python shows it."""
    try:
        said = json.dumps(result, default=str, allow_nan=False, ensure_ascii=False)
    except Exception:  # noqa: BLE001  it may be an object with a str() of its own
        said = ""
    if said and "\\u0000" not in said and as_text(said) == said:
        return said
    return json.dumps(_shown(repr, result))


def message_of(error: Exception) -> str:
    return _shown(str, error) or type(error).__name__


def _shown(how: Callable[[object], str], value: object) -> str:
    try:
        return as_text(how(value))
    except Exception:  # noqa: BLE001  as above
        return type(value).__name__
