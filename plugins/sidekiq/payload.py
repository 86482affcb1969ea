"""The JSON of a Sidekiq job, changed in place: every byte outside the changed values stays as Ruby wrote it.

Reading and writing the whole JSON would lose that: big numbers, the order of the keys, how a text is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

from console.keyed.redis_server import text

_DECODER = json.JSONDecoder(strict=False)
_BLANKS = " \t\n\r"
_BLANK = re.compile(rf"[{_BLANKS}]*")
_COLON = re.compile(rf"[{_BLANKS}]*:[{_BLANKS}]*")


class Span(NamedTuple):
    """Where a field of an object is: from its name to the end of its value."""

    start: int
    value: int
    end: int


def parse(written: str) -> dict[str, Any] | None:
    """The object; None if it is not a JSON object."""
    written = written.strip(_BLANKS)
    try:
        found, end = _DECODER.raw_decode(written)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and end == len(written) else None


def spans(text: str) -> dict[str, Span]:
    """The fields of a JSON object. Raises ValueError if it is none."""
    found: dict[str, Span] = {}
    at = _past_blanks(text, 0)
    if text[at : at + 1] != "{":
        raise ValueError("not an object")
    at = _past_blanks(text, at + 1)
    while text[at : at + 1] != "}":
        start = at
        name, at = _DECODER.raw_decode(text, at)
        at = _past_blanks(text, at)
        if text[at : at + 1] != ":" or not isinstance(name, str):
            raise ValueError("not an object")
        value = _past_blanks(text, at + 1)
        _, end = _DECODER.raw_decode(text, value)
        found[name] = Span(start, value, end)
        at = _past_blanks(text, end)
        if text[at : at + 1] == ",":
            at = _past_blanks(text, at + 1)
    return found


def _past_blanks(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    return at if found is None else found.end()


class Payload:
    """One job's JSON."""

    def __init__(self, raw: bytes) -> None:
        self._text = text(raw)
        self.fields: dict[str, Any] = parse(self._text) or {}
        """Empty if it is not a JSON object."""
        self._found: dict[str, Span | None] = {}
        """The fields that were looked for."""

    def written(self, name: str) -> str | None:
        """The value of a field as it is written; None if there is no such field."""
        span = self._span(name)
        return None if span is None else self._text[span.value : span.end]

    def edited(self, values: Mapping[str, str | None]) -> bytes:
        """The same object with other values, as they are to be written. New fields come last. None removes a field."""
        written = self._text
        found = {name: span for name in values if (span := self._span(name)) is not None}
        for span, value in sorted([(span, values[name]) for name, span in found.items()], reverse=True):
            written = _without(written, span) if value is None else _replaced(written, span, value)
        for name, value in values.items():
            if value is not None and name not in found:
                end = written.rindex("}")
                comma = "" if written[:end].rstrip().endswith("{") else ","
                written = f"{written[:end]}{comma}{json.dumps(name)}:{value}{written[end:]}"
        return written.encode("utf-8", "surrogateescape")

    def _span(self, name: str) -> Span | None:
        if name not in self._found:
            self._found[name] = self._searched(name)
        return self._found[name]

    def _searched(self, name: str) -> Span | None:
        """Where a field is. Its quoted name is looked for; the whole object is gone through only if that could be
        something else: a field or a text within another field, or a name that is written with escapes."""
        if not self.fields or "\\u00" in self._text:
            return self._spans.get(name)
        if name not in self.fields:
            return None
        quoted = f'"{name}"'
        start = self._text.find(quoted)
        colon = _COLON.match(self._text, start + len(quoted))
        if colon is None or self._text.find(quoted, start + 1) >= 0:
            return self._spans.get(name)
        return Span(start, colon.end(), _DECODER.raw_decode(self._text, colon.end())[1])

    @cached_property
    def _spans(self) -> dict[str, Span]:
        return spans(self._text)


def _replaced(text: str, span: Span, value: str) -> str:
    return f"{text[: span.value]}{value}{text[span.end :]}"


def _without(text: str, span: Span) -> str:
    before, after = text[: span.start], text[span.end :]
    if before.rstrip().endswith(","):
        return before.rstrip()[:-1] + after
    return before + after.lstrip().removeprefix(",")
