"""SQL fragments in a mapping, and formulas over the columns of a row.

A fragment is one expression or one statement. It cannot end the surrounding statement, open a comment or leave a
parenthesis open. `{table}` outside quotes is replaced by the table's name in this database, `:name` is a bound value.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

_TOKEN = re.compile(
    r"(?P<text>'(?:[^']|'')*')"
    r'|(?P<name>"(?:[^"]|"")*")'
    r"|(?P<table>\{[^{}'\"]*\})"
    r"|(?P<cast>::)"
    r"|(?P<bind>:[A-Za-z_]\w*)"
    r"|(?P<refused>;|--|/\*|\*/|\$\w*\$|'|\")"
    r"|(?P<open>[(\[])"
    r"|(?P<close>[)\]])"
    r"|(?P<sql>[^'\"{}:;$()\[\]/*-]+|.)",
    re.S,
)
_REFUSED = {
    ";": "remove the ; and write a single expression or statement",
    "--": "comments are not allowed in SQL here",
    "/*": "comments are not allowed in SQL here",
    "*/": "comments are not allowed in SQL here",
    "'": "a quote is not closed",
    '"': "a quote is not closed",
}
_PAIRS = {")": "(", "]": "["}


Make = Callable[[str], str]


def _itself(text: str) -> str:
    return text


@dataclass(frozen=True, slots=True)
class Fragment:
    """A checked piece of SQL: a sequence of (kind, text), where kind is sql, bind or table."""

    pieces: tuple[tuple[str, str], ...]

    @property
    def binds(self) -> frozenset[str]:
        return frozenset(text for kind, text in self.pieces if kind == "bind")

    @property
    def tables(self) -> frozenset[str]:
        return frozenset(text for kind, text in self.pieces if kind == "table")

    def sql(self, tables: Mapping[str, str], bind: Make = _itself, escape: Make = _itself) -> str:
        """Render it: `tables` gives the quoted names, `bind` the placeholder of a value, `escape` treats the rest."""
        made: dict[str, Make] = {"table": lambda name: tables[name], "bind": bind, "sql": escape}
        return "".join(made[kind](text) for kind, text in self.pieces)


@cache
def fragment(text: str, binds: frozenset[str] = frozenset()) -> Fragment:
    """Check a fragment; raises ValueError with the reason."""
    pieces, opened = [], []
    for kind, token in _tokens(text):
        if kind == "refused":
            raise ValueError(_REFUSED.get(token, "dollar quotes are not allowed in SQL here"))
        if kind == "open":
            opened.append(token)
        elif kind == "close" and (not opened or opened.pop() != _PAIRS[token]):
            raise ValueError(f"a {token} has no opening bracket")
        if kind == "bind" and token[1:] not in binds:
            known = f"; allowed here: {', '.join(f':{name}' for name in sorted(binds))}" if binds else ""
            raise ValueError(f"unknown value {token}{known}")
        pieces.append((kind, token[1:-1] if kind == "table" else token[1:] if kind == "bind" else token))
    if opened:
        raise ValueError(f"a {opened[-1]} is not closed")
    if not text.strip():
        raise ValueError("expected SQL, found nothing")
    return Fragment(tuple((kind if kind in ("bind", "table") else "sql", token) for kind, token in pieces))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(text):
        assert found.lastgroup is not None
        yield found.lastgroup, found[0]


# --- formulas -------------------------------------------------------------------------------------------

_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {ast.Add: operator.add, ast.Sub: operator.sub}
_FUNCTIONS: dict[str, Callable[..., int]] = {"greatest": max, "least": min}
_SHAPE = "write columns and whole numbers with + and -, greatest(…) and least(…)"


@dataclass(frozen=True, slots=True)
class Formula:
    """Arithmetic over the columns of a row. Retriage computes it, so that a plan can show the result."""

    tree: ast.expr
    names: frozenset[str]

    def value(self, columns: Mapping[str, Any]) -> int:
        return _value(self.tree, columns)


@cache
def formula(text: str) -> Formula:
    """Parse a formula; raises ValueError with the allowed syntax."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"not a formula; {_SHAPE}") from None
    names = frozenset(_names(tree))
    return Formula(tree, names)


def _names(tree: ast.expr) -> Iterator[str]:
    match tree:
        case ast.Name(id=name):
            yield name
        case ast.Constant(value=int() as number) if not isinstance(number, bool):
            pass
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=right):
            yield from _names(left)
            yield from _names(right)
        case ast.Call(func=ast.Name(id=function), args=[_, *_] as args, keywords=[]) if function in _FUNCTIONS:
            for argument in args:
                yield from _names(argument)
        case _:
            raise ValueError(f"not a formula; {_SHAPE}")


def _value(tree: ast.expr, columns: Mapping[str, Any]) -> int:
    match tree:
        case ast.Name(id=name):
            found = columns[name]
            return found if isinstance(found, int) else 0
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left, columns), _value(right, columns))
        case ast.Call(func=ast.Name(id=function), args=args):
            return _FUNCTIONS[function](*(_value(argument, columns) for argument in args))
        case ast.Constant(value=int() as number):
            return number
        case _:
            raise AssertionError("formula() allows no other node")
