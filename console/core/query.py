"""The query language (`Filter` and its terms), and how pages of items are asked for (`Sort`, `Cursor`, `Page`)."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, assert_never

from console.core.faults import QueryFault, UsageFault
from console.core.item import NEEDS_ATTENTION, Condition, Item, is_backend_name
from console.core.query_parser import Glob, RawTerm, RawValue, quoted, quoted_word, raw_terms
from console.core.text import ascii_lower, closest, duration, instant, neutralise, parse_duration, parse_moment

__all__ = [
    "COLUMN_SORTS", "NATURAL", "Cursor", "Field", "Filter", "Glob", "Op", "Page", "Sort", "SortField", "Term", "Value",
]

Value = str | Glob | int | bool | timedelta | datetime
"""A condition is a `Condition`, which is a str. A time is a duration from now, or an instant in UTC."""


class Field(StrEnum):
    """The fields of a term. TEXT is a bare word, searched in the error, the id and the plugin's reference fields."""

    BACKEND = "backend"
    CONDITION = "condition"
    TYPE = "type"
    STATUS = "status"
    KEY = "key"
    ERROR = "error"
    CAUSE = "cause"
    ATTEMPTS = "attempts"
    CREATED = "created"
    UPDATED = "updated"
    NEXT = "next"
    EXPIRES = "expires"
    RECOVERABLE = "recoverable"
    TEXT = "text"


class Op(StrEnum):
    """The comparison between a field and its value."""

    EQUALS = ":"
    CONTAINS = "~"
    BELOW = "<"
    AT_MOST = "<="
    ABOVE = ">"
    AT_LEAST = ">="


COMPARISONS: Mapping[Op, Callable[[Any, Any], bool]] = MappingProxyType(
    {Op.BELOW: operator.lt, Op.AT_MOST: operator.le, Op.ABOVE: operator.gt, Op.AT_LEAST: operator.ge}
)
_TEXTUAL = frozenset({Field.TYPE, Field.STATUS, Field.KEY, Field.ERROR})
_TIMES = frozenset({Field.CREATED, Field.UPDATED, Field.NEXT, Field.EXPIRES})
AHEAD = frozenset({Field.NEXT, Field.EXPIRES})
"""Times that lie ahead: a duration is counted from now on. All others count back from now."""
_NEVER_NULL = frozenset({Field.BACKEND, Field.CONDITION, Field.TYPE, Field.STATUS, Field.KEY})


# --- matching ---------------------------------------------------------------------------------------


def _any_contains(texts: Iterable[str | None], words: Sequence[Value]) -> bool:
    folded = [ascii_lower(str(word)) for word in words]
    return any(word in text for text in map(ascii_lower, filter(None, texts)) for word in folded)


def _any_equal(texts: Iterable[str | None], values: Sequence[Value]) -> bool:
    return any(
        value.matches(text) if isinstance(value, Glob) else value == text
        for text in texts
        if text is not None
        for value in values
    )


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on an item. A NULL makes it false, and so the negated term true."""

    field: Field
    op: Op
    values: tuple[Value, ...]
    negated: bool = False
    column: int = dataclasses.field(default=1, compare=False)

    def matches(self, item: Item, now: datetime, references: Sequence[str] = ()) -> bool:
        return self._holds(item, now, references) != self.negated

    def matches_backend(self, name: str) -> bool:
        return _any_equal((name,), self.values) != self.negated

    def matches_condition(self, condition: Condition) -> bool:
        return _any_equal((condition,), self.values) != self.negated

    def matches_signature(self, signature: str | None) -> bool:
        return self._holds_signature(signature) != self.negated

    @property
    def matches_all(self) -> bool:
        if self.field is Field.CONDITION:
            return all(map(self.matches_condition, Condition))
        whole = any(isinstance(value, Glob) and value.everything for value in self.values)
        return whole and self.field in _NEVER_NULL and not self.negated

    def _holds(self, item: Item, now: datetime, references: Sequence[str]) -> bool:
        match self.field:
            case Field.TEXT:
                return _any_contains((item.error, *item.key.parts, *references), self.values)
            case Field.ATTEMPTS:
                return self._compares(item.attempts)
            case Field.CREATED | Field.UPDATED | Field.NEXT | Field.EXPIRES:
                return self._holds_at(_time(self.field, item), now)
            case Field.RECOVERABLE:
                return item.verdict.recoverable in self.values
            case Field.CAUSE:
                return self._holds_signature(item.signature)
            case Field.BACKEND | Field.CONDITION | Field.TYPE | Field.STATUS | Field.KEY | Field.ERROR:
                holds = _any_contains if self.op is Op.CONTAINS else _any_equal
                return holds(_texts(self.field, item), self.values)
            case _:
                assert_never(self.field)

    def _compares(self, actual: Any) -> bool:
        if self.op is Op.EQUALS:
            return actual in self.values
        return COMPARISONS[self.op](actual, self.values[0])

    def _holds_at(self, moment: datetime | None, now: datetime) -> bool:
        if moment is None:
            return False
        if isinstance(self.values[0], timedelta):
            return self._compares(moment - now if self.field in AHEAD else now - moment)
        return self._compares(moment)

    def _holds_signature(self, signature: str | None) -> bool:
        return signature is not None and any(
            isinstance(value, Glob) or signature.startswith(str(value)) for value in self.values
        )

    def __str__(self) -> str:
        sign = "-" if self.negated else ""
        if self.field is Field.TEXT:
            return sign + ",".join(quoted_word(str(value)) for value in self.values)
        return f"{sign}{self.field}{self.op}" + ",".join(map(_value_text, self.values))


_TextField = Literal[Field.BACKEND, Field.CONDITION, Field.TYPE, Field.STATUS, Field.KEY, Field.ERROR]


def _texts(field: _TextField, item: Item) -> tuple[str | None, ...]:
    match field:
        case Field.BACKEND:
            return (item.key.backend,)
        case Field.CONDITION:
            return (item.condition,)
        case Field.TYPE:
            return (item.type,)
        case Field.STATUS:
            return (item.native_status,)
        case Field.KEY:
            return (str(item.key), item.key.id)
        case Field.ERROR:
            return (item.error,)
        case _:
            assert_never(field)


def _time(field: Field, item: Item) -> datetime | None:
    if field is Field.NEXT:
        return item.verdict.next_retry_at
    if field is Field.EXPIRES:
        return item.expires_at
    return item.created_at if field is Field.CREATED else item.updated_at


def _value_text(value: Value) -> str:
    match value:
        case bool():
            return "yes" if value else "no"
        case timedelta():
            return duration(value)
        case datetime():
            return _shortest_instant(value)
        case str():
            return quoted(value)
        case Glob() | int():
            return str(value)
        case _:
            assert_never(value)


def _shortest_instant(moment: datetime) -> str:
    return re.sub(r"(T\d\d:\d\d):00Z$", r"\1Z", instant(moment)).removesuffix("T00:00Z")


# --- the filter -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Terms that must all hold. `str` gives the canonical text, which parses to an equal filter."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Filter:
        return cls(tuple(map(_term, _bounded(raw_terms(text)))))

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def matches(self, item: Item, now: datetime, references: Sequence[str] = ()) -> bool:
        """Whether every term holds. The default conditions (`conditions`) are not applied here."""
        return all(term.matches(item, now, references) for term in self.terms)

    def terms_for(self, field: Field) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.field is field)

    def without(self, field: Field) -> Filter:
        return Filter(tuple(term for term in self.terms if term.field is not field))

    def and_(self, other: Filter) -> Filter:
        return Filter(tuple(dict.fromkeys(self.terms + other.terms)))

    def for_backend(self, name: str) -> Filter | None:
        """The filter without its `backend:` terms; None when they exclude this backend."""
        meant = all(term.matches_backend(name) for term in self.terms_for(Field.BACKEND))
        return self.without(Field.BACKEND) if meant else None

    def conditions(self) -> frozenset[Condition]:
        """The conditions asked for; without a condition term, those that need attention."""
        return _conditions(self.terms)

    @property
    def narrows(self) -> bool:
        """Whether it leaves anything out of what needs attention."""
        return not all(term.matches_all for term in self.terms)


# --- raw terms → terms ------------------------------------------------------------------------------

MOST_VALUES = 500
"""How many values one filter may have. Every supported database accepts this many in one statement."""
_MAX_ATTEMPTS = 2**31 - 1
_INSTANT = re.compile(r"\d{4}-\d\d-\d\d(?:T\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)
_TRUTH = {"yes": True, "true": True, "no": False, "false": False}


def _allowed_ops(field: Field) -> tuple[Op, ...]:
    if field in _TIMES:
        return tuple(COMPARISONS)
    if field is Field.ATTEMPTS:
        return (Op.EQUALS, *COMPARISONS)
    if field is Field.TEXT:
        return (Op.CONTAINS,)
    return (Op.EQUALS, Op.CONTAINS) if field in _TEXTUAL else (Op.EQUALS,)


def _bounded(terms: Iterable[RawTerm]) -> Iterator[RawTerm]:
    held = 0
    for term in terms:
        held += len(term.values)
        if held > MOST_VALUES:
            fix = "Split the filter, or match several values at once with * or ~."
            raise QueryFault(f"More than {MOST_VALUES} values in one filter", column=term.column, fix=fix)
        yield term


def _term(raw: RawTerm) -> Term:
    field = _field(raw) if raw.name else Field.TEXT
    op = Op(raw.op) if raw.op else Op.CONTAINS
    if op not in _allowed_ops(field):
        allowed = " ".join(f"{field}{one}" for one in _allowed_ops(field))
        raise QueryFault(f"'{field}{op}' is not supported", column=raw.column, fix=f"Use {allowed}")
    if op in COMPARISONS and len(raw.values) > 1:
        raise _mistake(raw.values[1], f"'{field}{op}' takes one value", "Remove the others.")
    return Term(field, op, tuple(_value(field, op, value) for value in raw.values), raw.negated, raw.column)


def _field(raw: RawTerm) -> Field:
    try:
        return Field(raw.name.lower())
    except ValueError:
        close = closest(raw.name.lower(), Field)
        known = f"Fields: {', '.join(Field)}. To search for this as text, put it in quotes."
        fix = f"Did you mean '{close}'?" if close else known
        raise QueryFault(f"Unknown field '{raw.name}'", column=raw.column, fix=fix) from None


def _value(field: Field, op: Op, raw: RawValue) -> Value:
    if op is Op.CONTAINS:
        if not raw.text:
            raise _mistake(raw, "Nothing to search for", "Write some text after ~.")
        return raw.text
    return _READERS[field](raw)


def _mistake(raw: RawValue, detail: str, fix: str) -> QueryFault:
    return QueryFault(detail, column=raw.column, fix=fix)


def _shown(raw: RawValue) -> str:
    return f"'{neutralise(raw.text, 60)}'"


def _read_text(raw: RawValue) -> Value:
    return raw.glob or raw.text


def _read_backend(raw: RawValue) -> Value:
    if raw.glob is None and not is_backend_name(raw.text):
        raise _mistake(raw, f"{_shown(raw)} is not a backend name", "Names use a-z, 0-9 and -; * matches any.")
    return raw.glob or raw.text


def _read_condition(raw: RawValue) -> Value:
    if raw.glob is not None:
        return Glob(tuple(map(ascii_lower, raw.glob.pieces)))
    try:
        return Condition(ascii_lower(raw.text))
    except ValueError:
        close = closest(ascii_lower(raw.text), Condition)
        fix = f"Did you mean '{close}'?" if close else f"Conditions: {', '.join(Condition)}."
        raise _mistake(raw, f"Unknown condition {_shown(raw)}", fix) from None


def _read_signature(raw: RawValue) -> Value:
    if raw.glob is not None and raw.glob.everything:
        return raw.glob
    if not re.fullmatch("[0-9a-fA-F]{4,12}", raw.text):
        raise _mistake(raw, f"{_shown(raw)} is not a cause", "Write 4 to 12 hex digits, such as 7f3a.")
    return raw.text.lower()


def _read_attempts(raw: RawValue) -> Value:
    if not re.fullmatch("-?[0-9]{1,10}", raw.text) or abs(int(raw.text)) > _MAX_ATTEMPTS:
        raise _mistake(raw, f"{_shown(raw)} is not a number of attempts", "Write a whole number, such as 3.")
    return int(raw.text)


def _read_time(raw: RawValue) -> Value:
    try:
        if not _INSTANT.fullmatch(raw.text):
            return parse_duration(raw.text)
        return parse_moment(raw.text)
    except ValueError:
        fix = "Write a duration (15m, 2h, 1d12h), or a date or time in UTC (2026-11-01, 2026-11-01T12:00Z)."
        raise _mistake(raw, f"{_shown(raw)} is not a time", fix) from None


def _read_truth(raw: RawValue) -> Value:
    truth = _TRUTH.get(ascii_lower(raw.text))
    if truth is None:
        raise _mistake(raw, f"{_shown(raw)} is neither yes nor no", "Write yes or no.")
    return truth


_READERS: Mapping[Field, Callable[[RawValue], Value]] = MappingProxyType(
    dict.fromkeys(_TEXTUAL, _read_text)
    | dict.fromkeys(_TIMES, _read_time)
    | {
        Field.BACKEND: _read_backend,
        Field.CONDITION: _read_condition,
        Field.CAUSE: _read_signature,
        Field.ATTEMPTS: _read_attempts,
        Field.RECOVERABLE: _read_truth,
    }
)


@lru_cache(maxsize=256)
def _conditions(terms: tuple[Term, ...]) -> frozenset[Condition]:
    asked = [term for term in terms if term.field is Field.CONDITION]
    if not asked:
        return frozenset(NEEDS_ATTENTION)
    return frozenset(c for c in Condition if all(term.matches_condition(c) for term in asked))


# --- pages ------------------------------------------------------------------------------------------


class SortField(StrEnum):
    """The columns a list can be sorted by."""

    UPDATED = "updated"
    CREATED = "created"
    NEXT = "next"
    ATTEMPTS = "attempts"
    TYPE = "type"
    ID = "id"
    BACKEND = "backend"
    """By the backend's name, each in the default order. No backend sorts by it."""


_ASCENDING_BY_NATURE = frozenset({SortField.NEXT, SortField.TYPE, SortField.ID, SortField.BACKEND})
COLUMN_SORTS = frozenset(SortField) - {SortField.BACKEND}
"""What a backend can sort by."""


@dataclass(frozen=True, slots=True)
class Sort:
    """An order; without a field, each backend's own, newest first."""

    field: SortField | None = None
    descending: bool = True

    @classmethod
    def parse(cls, text: str) -> Sort:
        """`updated`, `-updated` (descending), `updated:asc`, `updated:desc`.

        Without a direction the useful order comes first: newest, most attempts, soonest retry, A to Z.
        """
        name, colon, direction = text.strip().lower().removeprefix("-").partition(":")
        minus = text.strip().startswith("-")
        if not name and not colon and not minus:
            return cls()
        if name not in list(SortField) or (colon and (minus or direction not in ("asc", "desc"))):
            fix = f"Sort by {', '.join(SortField)}; add :asc or :desc for the direction."
            raise UsageFault(f"Cannot sort by '{neutralise(text, 60)}'", fix=fix)
        field = SortField(name)
        return cls(field, direction == "desc" if colon else minus or field not in _ASCENDING_BY_NATURE)

    @property
    def within(self) -> Sort:
        """The order of the items of one backend."""
        return NATURAL if self.field is SortField.BACKEND else self

    def __str__(self) -> str:
        return f"{self.field}:{'desc' if self.descending else 'asc'}" if self.field else ""


NATURAL = Sort()


class Cursor(NamedTuple):
    """Where a page begins or ends in one backend: the sorted value, and the key as the tiebreaker."""

    value: object
    is_null: bool
    key: tuple[object, ...]


class Page(NamedTuple):
    """Items in order. `next` and `previous` are the last and first row's cursors; None at that end.

    `scanned` is the number of rows that were read to find them, where core filters further than the backend.
    """

    items: tuple[Item, ...]
    next: Cursor | None
    previous: Cursor | None
    scanned: int | None = None
