"""A Filter as SQL: values always bound, the same answers as `Filter.matches`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, cast
from urllib.parse import unquote

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from console.core.item import ERROR_HEAD
from console.core.policy import RetryPolicy
from console.core.query import COMPARISONS, Field, Filter, Glob, Op, Term
from console.core.text import ascii_lower
from console.sql.layout import Expression, Predicate, Roles
from console.sql.statement import Binds
from console.sql.times import TimeStyle

_MIRRORED = {Op.BELOW: Op.ABOVE, Op.AT_MOST: Op.AT_LEAST, Op.ABOVE: Op.BELOW, Op.AT_LEAST: Op.AT_MOST}

_LITERAL_IN_GLOB = str.maketrans({"[": "[[]", "?": "[?]", "*": "[*]"})
_LITERAL_IN_LIKE = str.maketrans({"\\": "\\\\", "%": "\\%", "_": "\\_"})


class Where:
    """Turns the terms of a filter into predicates over one segment's roles."""

    def __init__(self, backend: str, dialect: Dialect, time: TimeStyle, policy: RetryPolicy) -> None:
        self._backend = backend
        self._sqlite = dialect.name == "sqlite"
        self._time = time
        self._policy = policy

    def predicates(self, filter: Filter, roles: Roles, binds: Binds) -> Iterator[Predicate]:
        """One predicate per term; conditions, backends and signatures are decided elsewhere."""
        for term in filter.terms:
            if term.field in (Field.BACKEND, Field.CONDITION, Field.SIGNATURE):
                continue
            predicate = self._any_of(term, roles, binds)
            yield sa.not_(sa.func.coalesce(predicate, sa.false())) if term.negated else predicate

    def hopeless(self, error: Expression, binds: Binds) -> Predicate:
        """Whether a pattern of the policy says that this error is not recoverable."""
        head = sa.func.substr(error, 1, sa.literal_column(str(ERROR_HEAD)))
        found = [self.contains(head, pattern, binds) for pattern in self._policy.unrecoverable]
        return sa.or_(sa.false(), *found)

    def contains(self, column: Expression, text: str, binds: Binds) -> Predicate:
        """Whether the text occurs, ignoring ASCII case only."""
        wanted = binds.value(ascii_lower(text))
        if self._sqlite:
            return sa.func.instr(sa.func.lower(column), wanted) > sa.literal_column("0")
        folded = sa.func.lower(sa.collate(sa.cast(column, sa.Text), "C"))
        return sa.func.strpos(folded, sa.cast(wanted, sa.Text)) > sa.literal_column("0")

    def _any_of(self, term: Term, roles: Roles, binds: Binds) -> Predicate:
        return sa.or_(*(self._one(term, value, roles, binds) for value in term.values))

    def _one(self, term: Term, value: Any, roles: Roles, binds: Binds) -> Predicate:
        match term.field:
            case Field.TYPE:
                return self._text(roles.type, term.op, value, binds)
            case Field.STATUS:
                return self._text(roles.status, term.op, value, binds)
            case Field.ERROR:
                return self._text(roles.error, term.op, value, binds)
            case Field.KEY:
                return self._key(roles, term.op, value, binds)
            case Field.ATTEMPTS:
                return self._number(roles.attempts, term.op, value, binds)
            case Field.CREATED | Field.UPDATED | Field.NEXT:
                return self._instant(term, value, roles, binds)
            case Field.RECOVERABLE:
                return self._recoverable(roles.error, bool(value), binds)
            case _:
                places = (roles.error, *roles.key, *roles.references)
                return sa.or_(*(sa.func.coalesce(self.contains(p, value, binds), sa.false()) for p in places))

    def _text(self, column: Expression, op: Op, value: Any, binds: Binds) -> Predicate:
        if op is Op.CONTAINS:
            return self.contains(column, value, binds)
        if isinstance(value, Glob):
            return self._glob(column, value, binds)
        return column == binds.value(value)

    def _key(self, roles: Roles, op: Op, value: Any, binds: Binds) -> Predicate:
        """A key is written percent-encoded and perhaps with its backend in front; the columns hold neither."""
        if op is Op.EQUALS and isinstance(value, str):
            ids = {value, value.removeprefix(f"{self._backend}/")}
            return sa.or_(*(self._is_id(roles.key, wanted, binds) for wanted in sorted(ids)))
        known_as = sa.literal_column(f"'{self._backend}/'").concat(_joined(roles.key))
        wanted = Glob(tuple(map(_decoded, value.pieces))) if isinstance(value, Glob) else _decoded(value)
        return sa.or_(*(self._text(c, op, wanted, binds) for c in (_joined(roles.key), known_as)))

    def _is_id(self, key: tuple[Expression, ...], wanted: str, binds: Binds) -> Predicate:
        parts = wanted.split("/")
        if len(parts) != len(key):
            return sa.false()
        return sa.and_(*(column == binds.value(_decoded(part)) for column, part in zip(key, parts, strict=True)))

    def _glob(self, column: Expression, wanted: Glob, binds: Binds) -> Predicate:
        if self._sqlite:
            pattern = "*".join(piece.translate(_LITERAL_IN_GLOB) for piece in wanted.pieces)
            return column.op("GLOB", is_comparison=True, return_type=sa.Boolean())(binds.value(pattern))
        pattern = "%".join(piece.translate(_LITERAL_IN_LIKE) for piece in wanted.pieces)
        return sa.cast(column, sa.Text).like(binds.value(pattern), escape="\\")

    def _number(self, column: Expression, op: Op, value: Any, binds: Binds) -> Predicate:
        bound = binds.value(value)
        return column == bound if op is Op.EQUALS else _compared(op, column, bound)

    def _instant(self, term: Term, value: Any, roles: Roles, binds: Binds) -> Predicate:
        column = {Field.CREATED: roles.created, Field.UPDATED: roles.updated, Field.NEXT: roles.next}[term.field]
        if column is None:
            return sa.false()
        op = term.op
        if isinstance(value, timedelta):
            ahead = term.field is Field.NEXT
            bound: Any = binds.from_now(self._time, value if ahead else -value)
            op = op if ahead else _MIRRORED[op]
        else:
            assert isinstance(value, datetime)
            bound = binds.value(self._time.encode(value))
        valid = self._time.valid(column)
        compared = _compared(op, column, bound)
        return compared if valid is None else sa.and_(compared, valid)

    def _recoverable(self, error: Expression, wanted: bool, binds: Binds) -> Predicate:
        hopeless = sa.func.coalesce(self.hopeless(error, binds), sa.false())
        present = sa.and_(error.is_not(None), error != sa.literal_column("''"))
        return sa.and_(present, sa.not_(hopeless) if wanted else hopeless)


def _compared(op: Op, column: Expression, bound: Expression) -> Predicate:
    compared: Any = COMPARISONS[op](column, bound)
    return cast("Predicate", compared)


def _decoded(text: str) -> str:
    return unquote(text, errors="surrogateescape")


def _joined(key: tuple[Expression, ...]) -> Expression:
    joined: Expression = sa.cast(key[0], sa.Text)
    for part in key[1:]:
        joined = joined.concat(sa.literal_column("'/'")).concat(sa.cast(part, sa.Text))
    return joined
