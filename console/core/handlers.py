"""Makes what a handler returned or raised storable in every database. It never fails: the handler has run already."""

from __future__ import annotations

import json
from collections.abc import Callable


def as_text(text: str) -> str:
    """The text with lone surrogates and NUL written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def as_json(result: object) -> str:
    """The result as JSON; its Python representation as a JSON string when that is not possible."""
    try:
        text = json.dumps(result, default=str, allow_nan=False, ensure_ascii=False)
    except Exception:  # noqa: BLE001  an object's own __str__ may raise anything
        text = ""
    if text and "\\u0000" not in text and as_text(text) == text:
        return text
    return json.dumps(_shown(repr, result))


def message_of(error: Exception) -> str:
    """The message of an error, or its class name when it has none."""
    return _shown(str, error) or type(error).__name__


def _shown(how: Callable[[object], str], value: object) -> str:
    try:
        return as_text(how(value))
    except Exception:  # noqa: BLE001  as above
        return type(value).__name__
