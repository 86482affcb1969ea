"""The JSON of a Sidekiq job, changed in place: every byte outside the changed values stays as Ruby wrote it.

Reading and writing the whole JSON would lose that: big numbers, the order of the keys, how a text is escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any, NamedTuple

_DECODER = json.JSONDecoder(strict=False)
_BLANK = re.compile(r"[ \t\n\r]*")


class Span(NamedTuple):
    """Where a field of an object is: from its name to the end of its value."""

    start: int
    value: int
    end: int


def parse(raw: bytes) -> dict[str, Any] | None:
    """The job; None if it is not a JSON object."""
    try:
        found = _DECODER.decode(raw.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


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
        self._raw = raw
        self.fields: dict[str, Any] = parse(raw) or {}
        """Empty if it is not a JSON object."""

    @cached_property
    def _text(self) -> str:
        return self._raw.decode("utf-8", "surrogateescape")

    def written(self, name: str) -> str | None:
        """The value of a field as it is written; None if there is no such field."""
        span = self._span(name)
        return None if span is None else self._text[span.value : span.end]

    def edited(self, values: Mapping[str, str | None]) -> bytes:
        """The same object with other values, as they are to be written. New fields come last. None removes a field."""
        text = self._text
        found = {name: span for name in values if (span := self._span(name)) is not None}
        for name, span in sorted(found.items(), key=lambda pair: pair[1], reverse=True):
            value = values[name]
            text = _without(text, span) if value is None else f"{text[: span.value]}{value}{text[span.end :]}"
        for name, value in values.items():
            if value is not None and name not in found:
                end = text.rindex("}")
                comma = "" if text[:end].rstrip().endswith("{") else ","
                text = f"{text[:end]}{comma}{json.dumps(name)}:{value}{text[end:]}"
        return text.encode("utf-8", "surrogateescape")

    def _span(self, name: str) -> Span | None:
        """Where a field is. Its quoted name is looked for; the whole object is gone through only if that could be
        something else: a field or a text within another field, or a name that is written with escapes."""
        if self._hides_names:
            return self._spans.get(name)
        if name not in self.fields:
            return None
        quoted = f'"{name}"'
        start = self._text.find(quoted)
        if self._text.find(quoted, start + 1) >= 0:
            return self._spans.get(name)
        value = _past_blanks(self._text, _past_blanks(self._text, start + len(quoted)) + 1)
        return Span(start, value, _DECODER.raw_decode(self._text, value)[1])

    @cached_property
    def _hides_names(self) -> bool:
        return not self.fields or "\\u00" in self._text

    @cached_property
    def _spans(self) -> dict[str, Span]:
        return spans(self._text)


def _without(text: str, span: Span) -> str:
    before, after = text[: span.start], text[span.end :]
    if before.rstrip().endswith(","):
        return before.rstrip()[:-1] + after
    return before + after.lstrip().removeprefix(",")
