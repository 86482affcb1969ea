"""A Filter as SQL: values always bound, the same answers as `Filter.matches`."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.engine import Dialect

from console.core.item import ERROR_HEAD, unquoted
from console.core.policy import RetryPolicy
from console.core.query import COMPARISONS, Field, Filter, Glob, Op, Term
from console.core.text import ascii_lower
from console.sql.layout import Expression, Predicate, Roles
from console.sql.statement import Binds, as_bytes, is_unicode
from console.sql.times import Aware, Naive, TimeStyle

_MIRRORED = {Op.BELOW: Op.ABOVE, Op.AT_MOST: Op.AT_LEAST, Op.ABOVE: Op.BELOW, Op.AT_LEAST: Op.AT_MOST}

_LONGEST = timedelta(days=999_999_000)
_WHOLE = re.compile("0|-?[1-9][0-9]{0,18}")
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
            yield sa.not_(_holds(predicate)) if term.negated else predicate

    def hopeless(self, error: Expression, binds: Binds) -> Predicate:
        """Whether a pattern of the policy says that this error is not recoverable."""
        found = [self.contains(head_of(error), pattern, binds) for pattern in self._policy.unrecoverable]
        return sa.or_(sa.false(), *found)

    def contains(self, column: Expression, text: str, binds: Binds) -> Predicate:
        """Whether the text occurs, ignoring ASCII case only."""
        folded: Expression
        if self._sqlite and not is_unicode(text):  # bytes within what is no text are found as bytes only
            folded = sa.cast(sa.func.lower(column), sa.LargeBinary)
            return sa.func.instr(folded, binds.value(as_bytes(ascii_lower(text)))) > sa.literal_column("0")
        wanted = binds.value(ascii_lower(text))
        if self._sqlite:
            return sa.func.instr(sa.func.lower(column), wanted) > sa.literal_column("0")
        folded = sa.func.lower(sa.collate(sa.cast(column, sa.Text), "C"))
        return sa.func.strpos(folded, sa.cast(wanted, sa.Text)) > sa.literal_column("0")

    def _any_of(self, term: Term, roles: Roles, binds: Binds) -> Predicate:
        """A database bears only so deep a chain of ORs: what is simply equal is one IN, and each of the rest is one."""
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
            case Field.CREATED | Field.UPDATED | Field.NEXT:
                return self._instant(term, value, roles, binds)
            case Field.RECOVERABLE:
                return self._recoverable(roles.error, bool(value), binds)
            case _:
                places = (head_of(roles.error), *roles.key, *roles.references)
                return _holds(sa.or_(*(self.contains(place, value, binds) for place in places)))

    def _like(self, column: Expression, value: Any, binds: Binds) -> Predicate:
        return self._glob(column, value, binds) if isinstance(value, Glob) else self.contains(column, value, binds)

    def _key(self, roles: Roles, value: Any, binds: Binds) -> Predicate:
        """A key is written percent-encoded and perhaps with its backend in front; the columns hold neither."""
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
        return sa.cast(column, sa.Text).like(binds.value(pattern), escape="\\")

    def _instant(self, term: Term, value: Any, roles: Roles, binds: Binds) -> Predicate:
        column = {Field.CREATED: roles.created, Field.UPDATED: roles.updated, Field.NEXT: roles.next}[term.field]
        if column is None:
            return sa.false()
        op = term.op
        if isinstance(value, timedelta):
            ahead = term.field is Field.NEXT
            bound: Any = binds.from_now(self._time.bound, value if ahead else -_bounded(value))
            op = op if ahead else _MIRRORED[op]
        else:
            assert isinstance(value, datetime)
            bound = binds.value(self._time.bound(value))
        found = _compared(op, self._time.compared(column), bound)
        # Said of the column itself as well where it compares as it is, so that an index on it serves.
        return sa.and_(_compared(op, column, bound), found) if isinstance(self._time, Naive | Aware) else found

    def _recoverable(self, error: Expression, wanted: bool, binds: Binds) -> Predicate:
        hopeless = _holds(self.hopeless(error, binds))
        head = head_of(error)
        present = sa.and_(head.is_not(None), head != sa.literal_column("''"))
        return sa.and_(present, sa.not_(hopeless) if wanted else hopeless)


def _holds(predicate: Predicate) -> Predicate:
    """Whether it is true: neither false nor unknown."""
    return sa.func.coalesce(predicate, sa.false())


def _compared(op: Op, column: Expression, bound: Expression) -> Predicate:
    compared: Any = COMPARISONS[op](column, bound)
    return cast("Predicate", compared)


def _bounded(span: timedelta) -> timedelta:
    """A span whose opposite is one too; nothing in a calendar is as long as that."""
    return min(max(span, -_LONGEST), _LONGEST)


def head_of(error: Expression) -> Expression:
    """As much of an error as an item has in a list, as text."""
    return sa.cast(sa.func.substr(error, sa.literal_column("1"), sa.literal_column(str(ERROR_HEAD))), sa.Text)


def is_key(roles: Roles, parts: tuple[str, ...], binds: Binds, sqlite: bool) -> Predicate:
    """Whether a row has this key, as `rows.py` reads it: in SQLite a BLOB is its text, and NULL the empty one."""
    if roles.native_key is not None:
        native = roles.native_key(parts)
        return sa.false() if native is None else sa.and_(*map(operator.eq, roles.key, map(binds.value, native)))
    return sa.and_(*(_is_part(column, [part], binds, sqlite) for column, part in zip(roles.key, parts, strict=True)))


def has_key(roles: Roles, keys: Sequence[tuple[str, ...]], binds: Binds, sqlite: bool) -> Predicate:
    """Whether a row has one of these keys: one IN where a key is one column."""
    if not keys or len(roles.key) > 1:
        return sa.or_(sa.false(), *(is_key(roles, parts, binds, sqlite) for parts in keys))
    (column,) = roles.key
    if roles.native_key is None:
        return _is_part(column, [part for (part,) in keys], binds, sqlite)
    natives = [native for native in map(roles.native_key, keys) if native is not None]
    return column.in_([binds.value(value) for (value,) in natives]) if natives else sa.false()


def _is_part(column: Expression, parts: Sequence[str], binds: Binds, sqlite: bool) -> Predicate:
    if not sqlite:
        return column.in_([binds.value(part) for part in parts])
    same = column.in_([binds.value(one) for part in parts for one in (part, as_bytes(part))])
    return same if all(parts) else sa.or_(same, column.is_(None))


def shows_key(roles: Roles, keys: Sequence[tuple[str, ...]], binds: Binds) -> Predicate:
    """Whether a row of SQLite is listed under one of these keys, whatever type of value its columns hold."""
    if not keys or len(roles.key) > 1:
        found = (map(_shows_part, roles.key, ([part] for part in parts), repeat(binds)) for parts in keys)
        return sa.or_(sa.false(), *(sa.and_(*parts) for parts in found))
    (column,) = roles.key
    return _shows_part(column, [part for (part,) in keys], binds)


def may_be_loose(roles: Roles, parts: tuple[str, ...]) -> bool:
    """Whether a row may be listed under this key that `is_key` does not find: a text and a BLOB it finds alike."""
    fits = len(parts) == len(roles.key)
    return fits and (roles.native_key is not None or any(_whole(part) or _real(part) is not None for part in parts))


def _shows_part(column: Expression, parts: Sequence[str], binds: Binds) -> Predicate:
    """By all values that are read as such a text, which an index finds; of those that are equal to one of them and
    are not (1.0 to 1, 7 to '07' in a column of numbers), none."""
    whole = [int(part) for part in parts if _whole(part)]
    broken = [number for part in parts if (number := _real(part)) is not None]
    texts = [binds.value(part) for part in parts]
    equal = column.in_([*texts, *map(binds.value, [*map(as_bytes, parts), *whole, *broken])])
    is_real = sa.func.typeof(column) == sa.literal_column("'real'")  # which SQLite writes otherwise than it is read
    told = sa.and_(sa.not_(is_real), sa.cast(column, sa.Text).in_(texts))
    if broken:
        told = sa.or_(told, sa.and_(is_real, column.in_(list(map(binds.value, broken)))))
    same = sa.and_(equal, told)
    return same if all(parts) else sa.or_(same, column.is_(None))


def _whole(part: str) -> bool:
    return bool(_WHOLE.fullmatch(part)) and -(2**63) <= int(part) < 2**63


def _real(part: str) -> float | None:
    try:
        number = float(part)
    except ValueError:
        return None
    return number if str(number) == part and part != "nan" else None


def _text_of(field: Field, roles: Roles) -> Expression:
    if field is Field.ERROR:
        return head_of(roles.error)
    return _or_empty(roles.type if field is Field.TYPE else roles.status)


def plain_keys(roles: Sequence[Roles], keys: Sequence[tuple[str, ...]], sqlite: bool) -> dict[str, Any] | None:
    """The parameters of `is_given_key` for all of these; None where some key is not like most, and needs `is_key`."""
    given: dict[str, Any] = {}
    for number, role in enumerate(roles):
        for n, parts in enumerate(keys):
            if len(parts) != len(role.key) or not all(part and is_unicode(part) for part in parts):
                return None
            native: Sequence[Any] = parts
            if role.native_key is not None:
                native = role.native_key(parts) or [None] * len(parts)  # which no row has
            for place, value in enumerate(native):
                given[f"k{number}_{n}_{place}"] = value
                if sqlite and role.native_key is None:
                    given[f"b{number}_{n}_{place}"] = as_bytes(value)
    return given


def is_given_key(roles: Roles, number: int, count: int, binds: Binds, sqlite: bool) -> Predicate:
    """Whether a row has one of so many keys that are given when it is asked."""
    both = ("k", "b") if sqlite and roles.native_key is None else ("k",)

    def values(n: int, place: int) -> list[Expression]:
        return [binds.given(f"{kind}{number}_{n}_{place}") for kind in both]

    if len(roles.key) == 1:
        return roles.key[0].in_([value for n in range(count) for value in values(n, 0)])
    return sa.or_(
        *(
            sa.and_(*(column.in_(values(n, place)) for place, column in enumerate(roles.key)))
            for n in range(count)
        )
    )


def _or_empty(column: Expression) -> Expression:
    """What an item shows as empty text where there is none."""
    return sa.func.coalesce(sa.cast(column, sa.Text), sa.literal_column("''"))


def _joined(key: tuple[Expression, ...]) -> Expression:
    joined = _or_empty(key[0])
    for part in key[1:]:
        joined = joined.concat(sa.literal_column("'/'")).concat(_or_empty(part))
    return joined
