"""The query language's surface: text → raw terms with columns, values → text. Knows no fields' meaning."""

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
    """A pattern as the literal pieces between its stars: `a*b` is ("a", "b"), `*` is ("", "")."""

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
    """One value as written: its text, and as pieces between the stars outside quotes."""

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
    """The text as a value that reads back as itself, in quotes only where it needs them."""
    return f'"{text.translate(_ESCAPED)}"' if not text or _NEEDS_QUOTES.search(text) else text


def quoted_word(text: str) -> str:
    """As a bare word, which must not look like a field or a negation either."""
    if text.startswith("-") or _FIELD.match(text):
        return f'"{text.translate(_ESCAPED)}"'
    return quoted(text)


def raw_terms(text: str) -> Iterator[RawTerm]:
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
                raise QueryFault("a - with nothing to negate", column=column, fix='Write -field:value or "-"')
        field = _FIELD.match(self._text, self._at)
        if field:
            self._at = field.end()
        name, op = field.groups() if field else ("", "")
        return RawTerm(negated, name, op, tuple(self._values(f"{name}{op}")), column)

    @property
    def _next(self) -> str:
        return self._text[self._at : self._at + 1]

    def _values(self, lead: str) -> Iterator[RawValue]:
        yield self._value(lead)
        while self._next == ",":
            self._at += 1
            yield self._value(",")

    def _value(self, lead: str) -> RawValue:
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
            where = f"after {lead}" if lead else "before ,"
            raise QueryFault(f"a value is missing {where}", column=column, fix='An empty value is written ""')
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
                raise QueryFault('this " is never closed', column=opened, fix='Close it, or write \\" inside')
        self._at += 1
        return "".join(chars)

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter not in _ESCAPES:
            raise QueryFault(
                f"\\{letter} means nothing here", column=self._at + 1, fix='Known are \\" \\\\ \\n \\t \\r'
            )
        self._at += 2
        return _ESCAPES[letter]
