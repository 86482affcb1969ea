"""The syntax of the query language: text to raw terms with their columns, and values back to text.

What the fields mean is in `query`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from console.core.faults import QueryFault

_FIELD = re.compile(r"([A-Za-z_]+)(<=|>=|[:~<>])")
_BARE = re.compile(r'[^\s,"]+')
_ESCAPES = {'"': '"', "\\": "\\", "n": "\n", "t": "\t", "r": "\r"}
_ESCAPED = str.maketrans({char: f"\\{letter}" for letter, char in _ESCAPES.items()})
_NEEDS_QUOTES = re.compile(r'[\s,"*\\]')


class Glob(NamedTuple):
    """A pattern, split at its stars: `a*b` is ("a", "b"), `*` is ("", "")."""

    pieces: tuple[str, ...]

    @property
    def everything(self) -> bool:
        return not any(self.pieces)

    def matches(self, text: str) -> bool:
        first, *middle, last = self.pieces
        if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
            return False
        at, end = len(first), len(text) - len(last)
        for piece in middle:
            found = text.find(piece, at, end)
            if found < 0:
                return False
            at = found + len(piece)
        return True

    def __str__(self) -> str:
        return "*".join(quoted(piece) if piece else "" for piece in self.pieces)


class RawValue(NamedTuple):
    """One value as written: its text, and its pieces between the stars that are outside quotes."""

    text: str
    pieces: tuple[str, ...]
    column: int

    @property
    def glob(self) -> Glob | None:
        if len(self.pieces) < 2:
            return None
        first, *middle, last = self.pieces
        return Glob((first, *filter(None, middle), last))


class RawTerm(NamedTuple):
    """One term as written; a bare word has no name and no operator."""

    negated: bool
    name: str
    op: str
    values: tuple[RawValue, ...]
    column: int


def quoted(text: str) -> str:
    """Write a text as a value, in quotes only where they are needed."""
    return f'"{text.translate(_ESCAPED)}"' if not text or _NEEDS_QUOTES.search(text) else text


def quoted_word(text: str) -> str:
    """Write a text as a bare word, quoted also where it looks like a field or a negation."""
    if text.startswith("-") or _FIELD.match(text):
        return f'"{text.translate(_ESCAPED)}"'
    return quoted(text)


def raw_terms(text: str) -> Iterator[RawTerm]:
    """Split a filter into its terms."""
    reader = _Reader(text)
    while reader.skip_blanks():
        yield reader.term()


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def skip_blanks(self) -> bool:
        while self._at < len(self._text) and self._text[self._at].isspace():
            self._at += 1
        return self._at < len(self._text)

    def term(self) -> RawTerm:
        column = self._at + 1
        negated = self._next == "-"
        if negated:
            self._at += 1
            if not self._next or self._next.isspace() or self._next == "-":
                fix = 'Write -field:value, or "-" in quotes.'
                raise QueryFault("Nothing to negate after '-'", column=column, fix=fix)
        field = _FIELD.match(self._text, self._at)
        if field:
            self._at = field.end()
        name, op = field.groups() if field else ("", "")
        return RawTerm(negated, name, op, tuple(self._values(f"{name}{op}")), column)

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _values(self, before: str) -> Iterator[RawValue]:
        yield self._value(before)
        while self._next == ",":
            self._at += 1
            yield self._value(",")

    def _value(self, before: str) -> RawValue:
        column = self._at + 1
        text, pieces = "", [""]
        while self._next and self._next != "," and not self._next.isspace():
            if self._next == '"':
                part = self._quoted_part()
                pieces[-1] += part
            else:
                part = self._bare_part()
                first, *more = part.split("*")
                pieces[-1] += first
                pieces += more
            text += part
        if self._at + 1 == column:
            where = f"after '{before}'" if before else "before ','"
            raise QueryFault(f"Missing value {where}", column=column, fix='Write "" for an empty value.')
        return RawValue(text, tuple(pieces), column)

    def _bare_part(self) -> str:
        part = _BARE.match(self._text, self._at)
        assert part is not None, "a value's next character is no blank, comma or quote here"
        self._at = part.end()
        return part[0]

    def _quoted_part(self) -> str:
        opened = self._at + 1
        self._at += 1
        chars: list[str] = []
        while (char := self._next) != '"':
            if char == "\\":
                chars.append(self._escape())
            elif char:
                chars.append(char)
                self._at += 1
            else:
                raise QueryFault("Unclosed quote", column=opened, fix='Add the closing ", or write \\" inside a value.')
        self._at += 1
        return "".join(chars)

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter not in _ESCAPES:
            raise QueryFault(
                f"Unknown escape '\\{letter}'", column=self._at + 1, fix='Use \\" \\\\ \\n \\t or \\r.'
            )
        self._at += 2
        return _ESCAPES[letter]
