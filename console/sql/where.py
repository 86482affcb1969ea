"""A Filter as SQL. Values are always bound, and the result is the same as that of `Filter.matches`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, assert_never, cast

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from console.core.item import unquoted
from console.core.policy import RetryPolicy
from console.core.query import AHEAD, COMPARISONS, Field, Filter, Glob, Op, Term
from console.core.text import ascii_lower
from console.sql.database import Binds
from console.sql.keys import has_key, shows_key
from console.sql.layout import Expression, Predicate, Roles
from console.sql.times import Aware, Naive, TimeStyle
from console.sql.values import as_bytes, excerpt_of, is_unicode

_MIRRORED = {Op.BELOW: Op.ABOVE, Op.AT_MOST: Op.AT_LEAST, Op.ABOVE: Op.BELOW, Op.AT_LEAST: Op.AT_MOST}

_LONGEST = timedelta(days=999_999_000)
_LITERAL_IN_GLOB = str.maketrans({"[": "[[]", "?": "[?]", "*": "[*]"})
_LITERAL_IN_LIKE = str.maketrans({"|": "||", "%": "|%", "_": "|_"})


class Where:
    """Makes predicates from the terms of a filter, over the roles of one segment."""

    def __init__(self, backend: str, dialect: Dialect, time: TimeStyle, policy: RetryPolicy) -> None:
        self._backend = backend
        self._sqlite = dialect.name == "sqlite"
        self._mysql = dialect.name == "mysql"
        self._time = time
        self._policy = policy

    def predicates(self, filter: Filter, roles: Roles, binds: Binds) -> Iterator[Predicate]:
        """One predicate per term; conditions, backends and signatures are applied elsewhere."""
        for term in filter.terms:
            if term.field in (Field.BACKEND, Field.CONDITION, Field.CAUSE):
                continue
            predicate = self._any_of(term, roles, binds)
            yield sa.not_(_holds(predicate)) if term.negated else predicate

    def hopeless(self, error: Expression, binds: Binds) -> Predicate:
        """Whether a pattern of the policy marks this error as unrecoverable."""
        found = [self.contains(shown_error(error), pattern, binds) for pattern in self._policy.unrecoverable]
        return sa.or_(sa.false(), *found)

    def contains(self, column: Expression, text: str, binds: Binds) -> Predicate:
        """Whether the text occurs, ignoring ASCII case only."""
        folded: Expression
        if self._sqlite and not is_unicode(text):  # text that is not UTF-8 is searched as bytes
            folded = sa.cast(sa.func.lower(column), sa.LargeBinary)
            return sa.func.instr(folded, binds.value(as_bytes(ascii_lower(text)))) > sa.literal_column("0")
        if self._mysql:  # its lower() changes letters outside ASCII too
            return sa.cast(column, sa.Text).op("REGEXP", is_comparison=True)(binds.value(_as_pattern(text)))
        wanted = binds.value(ascii_lower(text))
        if self._sqlite:
            return sa.func.instr(sa.func.lower(column), wanted) > sa.literal_column("0")
        folded = sa.func.lower(sa.collate(sa.cast(column, sa.Text), "C"))
        return sa.func.strpos(folded, sa.cast(wanted, sa.Text)) > sa.literal_column("0")

    def _any_of(self, term: Term, roles: Roles, binds: Binds) -> Predicate:
        """Equal values become one IN, other values one predicate each: databases limit the depth of an OR."""
        values = dict.fromkeys(term.values)
        listed = term.op is Op.EQUALS and term.field is not Field.RECOVERABLE
        plain = [value for value in values if listed and not isinstance(value, Glob)]
        found = [self._one(term, value, roles, binds) for value in values if not listed or isinstance(value, Glob)]
        return sa.or_(*found, self._among(term.field, plain, roles, binds)) if plain else sa.or_(*found)

    def _among(self, field: Field, values: Sequence[Any], roles: Roles, binds: Binds) -> Predicate:
        if field is Field.KEY:
            return self._has_id(roles, values, binds)
        column = roles.attempts if field is Field.ATTEMPTS else _text_of(field, roles)
        return column.in_([binds.value(value) for value in values])

    def _one(self, term: Term, value: Any, roles: Roles, binds: Binds) -> Predicate:
        match term.field:
            case Field.TYPE | Field.STATUS | Field.ERROR:
                return self._like(_text_of(term.field, roles), value, binds)
            case Field.KEY:
                return self._key(roles, value, binds)
            case Field.ATTEMPTS:
                return _compared(term.op, roles.attempts, binds.value(value))
            case Field.CREATED | Field.UPDATED | Field.NEXT | Field.EXPIRES:
                return self._instant(term, value, roles, binds)
            case Field.RECOVERABLE:
                return self._recoverable(roles.error, bool(value), binds)
            case Field.TEXT:
                places = (sa.cast(roles.error, sa.Text), *roles.key, *roles.references)
                return _holds(sa.or_(*(self.contains(place, value, binds) for place in places)))
            case Field.BACKEND | Field.CONDITION | Field.CAUSE:
                raise ValueError(f"{term.field} is applied elsewhere")
            case _:
                assert_never(term.field)

    def _like(self, column: Expression, value: Any, binds: Binds) -> Predicate:
        return self._glob(column, value, binds) if isinstance(value, Glob) else self.contains(column, value, binds)

    def _key(self, roles: Roles, value: Any, binds: Binds) -> Predicate:
        """In a filter a key is percent-encoded and may start with its backend; the columns hold neither."""
        known_as = sa.literal_column(f"'{self._backend}/'").concat(_joined(roles.key))
        wanted = Glob(tuple(map(unquoted, value.pieces))) if isinstance(value, Glob) else unquoted(value)
        return _holds(sa.or_(*(self._like(c, wanted, binds) for c in (_joined(roles.key), known_as))))

    def _has_id(self, roles: Roles, written: Sequence[str], binds: Binds) -> Predicate:
        ids = dict.fromkeys(id for one in written for id in (one, one.removeprefix(f"{self._backend}/")))
        keys = [tuple(map(unquoted, id.split("/"))) for id in ids]
        fitting = [parts for parts in keys if len(parts) == len(roles.key)]
        return shows_key(roles, fitting, binds) if self._sqlite else has_key(roles, fitting, binds, sqlite=False)

    def _glob(self, column: Expression, wanted: Glob, binds: Binds) -> Predicate:
        if self._sqlite:
            pattern = "*".join(piece.translate(_LITERAL_IN_GLOB) for piece in wanted.pieces)
            return column.op("GLOB", is_comparison=True, return_type=sa.Boolean())(binds.value(pattern))
        pattern = "%".join(piece.translate(_LITERAL_IN_LIKE) for piece in wanted.pieces)
        return sa.cast(column, sa.Text).like(binds.value(pattern), escape="|")

    def _instant(self, term: Term, value: Any, roles: Roles, binds: Binds) -> Predicate:
        columns = {Field.CREATED: roles.created, Field.UPDATED: roles.updated, Field.NEXT: roles.next}
        column = columns.get(term.field, roles.expires)
        if column is None:
            return sa.false()
        op = term.op
        if isinstance(value, timedelta):
            ahead = term.field in AHEAD
            bound: Any = binds.from_now(self._time.bound, value if ahead else -_bounded(value))
            op = op if ahead else _MIRRORED[op]
        else:
            assert isinstance(value, datetime)
            bound = binds.value(self._time.bound(value))
        found = _compared(op, self._time.compared(column), bound)
        # Where the column itself compares correctly, it is compared too, so that an index on it serves.
        return sa.and_(_compared(op, column, bound), found) if isinstance(self._time, Naive | Aware) else found

    def _recoverable(self, error: Expression, wanted: bool, binds: Binds) -> Predicate:
        hopeless = _holds(self.hopeless(error, binds))
        text = sa.cast(error, sa.Text)
        present = sa.and_(text.is_not(None), text != sa.literal_column("''"))
        return sa.and_(present, sa.not_(hopeless) if wanted else hopeless)


def _as_pattern(text: str) -> str:
    """A regular expression for a text in any ASCII case, which every server understands."""
    return "".join(
        f"[{char.lower()}{char.upper()}]" if char.isascii() and char.isalpha()
        else f"\\{char}" if char.isascii() and not char.isalnum() and char.isprintable() and char != " "
        else char
        for char in text
    )


def _holds(predicate: Predicate) -> Predicate:
    """Whether a predicate is true, neither false nor NULL."""
    return sa.func.coalesce(predicate, sa.false())


def _compared(op: Op, column: Expression, bound: Expression) -> Predicate:
    compared: Any = COMPARISONS[op](column, bound)
    return cast("Predicate", compared)


def _bounded(span: timedelta) -> timedelta:
    """A span that can be negated; no calendar is as long as the limit."""
    return min(max(span, -_LONGEST), _LONGEST)


def shown_error(error: Expression) -> Expression:
    """An error as an item in a list shows it."""
    return sa.cast(excerpt_of(error), sa.Text)


def _text_of(field: Field, roles: Roles) -> Expression:
    if field is Field.ERROR:
        return sa.cast(roles.error, sa.Text)
    return _or_empty(roles.type if field is Field.TYPE else roles.status)


def _or_empty(column: Expression) -> Expression:
    """The column as text, empty for NULL, as an item shows it."""
    return sa.func.coalesce(sa.cast(column, sa.Text), sa.literal_column("''"))


def _joined(key: tuple[Expression, ...]) -> Expression:
    joined = _or_empty(key[0])
    for part in key[1:]:
        joined = joined.concat(sa.literal_column("'/'")).concat(_or_empty(part))
    return joined
