"""The query language: Filter and its terms; and the words for pages of items: Sort, Cursor, Page."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

from console.core.faults import QueryFault, UsageFault
from console.core.item import NEEDS_EYES, Condition, Item, is_backend_name
from console.core.query_parser import Glob, RawTerm, RawValue, quoted, quoted_word, raw_terms
from console.core.text import ascii_lower, closest, duration, instant, neutralise, parse_duration

__all__ = ["NATURAL", "Cursor", "Field", "Filter", "Glob", "Op", "Page", "Sort", "SortField", "Term", "Value"]

Value = str | Glob | int | bool | timedelta | datetime
"""A condition is a Condition (a str); times are durations from now, or instants in UTC."""


class Field(StrEnum):
    """What a term looks at. TEXT is a bare word: error, id and the plugin's reference fields."""

    BACKEND = "backend"
    CONDITION = "condition"
    TYPE = "type"
    STATUS = "status"
    KEY = "key"
    ERROR = "error"
    SIGNATURE = "signature"
    ATTEMPTS = "attempts"
    CREATED = "created"
    UPDATED = "updated"
    NEXT = "next"
    RECOVERABLE = "recoverable"
    TEXT = "text"


class Op(StrEnum):
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
_TIMES = frozenset({Field.CREATED, Field.UPDATED, Field.NEXT})
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
    """One condition on an item. What is NULL makes it false, and so the negated term true."""

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
            case Field.CREATED | Field.UPDATED | Field.NEXT:
                return self._holds_at(_time(self.field, item), now)
            case Field.RECOVERABLE:
                return item.verdict.recoverable in self.values
            case Field.SIGNATURE:
                return self._holds_signature(item.signature)
            case _ if self.op is Op.CONTAINS:
                return _any_contains(_texts(self.field, item), self.values)
            case _:
                return _any_equal(_texts(self.field, item), self.values)

    def _compares(self, actual: Any) -> bool:
        if self.op is Op.EQUALS:
            return actual in self.values
        return COMPARISONS[self.op](actual, self.values[0])

    def _holds_at(self, moment: datetime | None, now: datetime) -> bool:
        if moment is None:
            return False
        if isinstance(self.values[0], timedelta):
            return self._compares(moment - now if self.field is Field.NEXT else now - moment)
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


def _texts(field: Field, item: Item) -> tuple[str | None, ...]:
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
        case _:
            return (item.error,)


def _time(field: Field, item: Item) -> datetime | None:
    if field is Field.NEXT:
        return item.verdict.next_retry_at
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
        case _:
            return str(value)


def _shortest_instant(moment: datetime) -> str:
    return re.sub(r"(T\d\d:\d\d):00Z$", r"\1Z", instant(moment)).removesuffix("T00:00Z")


# --- the filter -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Filter:
    """Terms, all of which must hold. `str` gives the canonical text, which parses to an equal filter."""

    terms: tuple[Term, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Filter:
        return cls(tuple(map(_term, _bounded(raw_terms(text)))))

    def __str__(self) -> str:
        return " ".join(map(str, self.terms))

    def matches(self, item: Item, now: datetime, references: Sequence[str] = ()) -> bool:
        """Whether every term holds; what is shown by default (`conditions`) is the lister's to apply."""
        return all(term.matches(item, now, references) for term in self.terms)

    def terms_for(self, field: Field) -> tuple[Term, ...]:
        return tuple(term for term in self.terms if term.field is field)

    def without(self, field: Field) -> Filter:
        return Filter(tuple(term for term in self.terms if term.field is not field))

    def and_(self, other: Filter) -> Filter:
        return Filter(tuple(dict.fromkeys(self.terms + other.terms)))

    def for_backend(self, name: str) -> Filter | None:
        """What is left to ask this backend; None when it is not meant at all."""
        meant = all(term.matches_backend(name) for term in self.terms_for(Field.BACKEND))
        return self.without(Field.BACKEND) if meant else None

    def conditions(self) -> frozenset[Condition]:
        """The conditions asked for; without a condition term, those that need eyes."""
        return _conditions(self.terms)

    @property
    def narrows(self) -> bool:
        return not all(term.matches_all for term in self.terms)


# --- raw terms → terms ------------------------------------------------------------------------------

MOST_VALUES = 500
"""In one filter: what every database bears in one statement."""
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
            fix = "Ask in several parts, or for what they have in common with * or ~"
            raise QueryFault(f"more than {MOST_VALUES} values are asked for", column=term.column, fix=fix)
        yield term


def _term(raw: RawTerm) -> Term:
    field = _field(raw) if raw.name else Field.TEXT
    op = Op(raw.op) if raw.op else Op.CONTAINS
    if op not in _allowed_ops(field):
        fits = " ".join(f"{field}{allowed}" for allowed in _allowed_ops(field))
        raise QueryFault(f"{field}{op} is not possible", column=raw.column, fix=f"What fits: {fits}")
    if op in COMPARISONS and len(raw.values) > 1:
        raise _misfit(raw.values[1], f"{field}{op} takes one value", "Leave the rest out")
    return Term(field, op, tuple(_value(field, op, value) for value in raw.values), raw.negated, raw.column)


def _field(raw: RawTerm) -> Field:
    try:
        return Field(raw.name.lower())
    except ValueError:
        close = closest(raw.name.lower(), Field)
        hint = f"Did you mean {close}{raw.op}?" if close else f"Fields are {', '.join(Field)}"
        fix = f"{hint}; to search for it as text, put it in quotes"
        raise QueryFault(f"there is no field {raw.name}", column=raw.column, fix=fix) from None


def _value(field: Field, op: Op, raw: RawValue) -> Value:
    if op is Op.CONTAINS:
        if not raw.text:
            raise _misfit(raw, "nothing to look for", "Write some text to look for")
        return raw.text
    return _READERS[field](raw)


def _misfit(raw: RawValue, detail: str, fix: str) -> QueryFault:
    return QueryFault(detail, column=raw.column, fix=fix)


def _shown(raw: RawValue) -> str:
    return neutralise(quoted(raw.text), 60)


def _read_text(raw: RawValue) -> Value:
    return raw.glob or raw.text


def _read_backend(raw: RawValue) -> Value:
    if raw.glob is None and not is_backend_name(raw.text):
        raise _misfit(raw, f"{_shown(raw)} is no backend name", "Names have a-z, 0-9 and - only; * fits any")
    return raw.glob or raw.text


def _read_condition(raw: RawValue) -> Value:
    if raw.glob is not None:
        return Glob(tuple(map(ascii_lower, raw.glob.pieces)))
    try:
        return Condition(ascii_lower(raw.text))
    except ValueError:
        close = closest(ascii_lower(raw.text), Condition)
        fix = f"Did you mean {close}?" if close else f"Conditions are {', '.join(Condition)}"
        raise _misfit(raw, f"there is no condition {_shown(raw)}", fix) from None


def _read_signature(raw: RawValue) -> Value:
    if raw.glob is not None and raw.glob.everything:
        return raw.glob
    if not re.fullmatch("[0-9a-fA-F]{4,12}", raw.text):
        raise _misfit(raw, f"{_shown(raw)} is no signature", "4 to 12 hex digits fit, as 7f3a")
    return raw.text.lower()


def _read_attempts(raw: RawValue) -> Value:
    if not re.fullmatch("-?[0-9]{1,10}", raw.text) or abs(int(raw.text)) > _MAX_ATTEMPTS:
        raise _misfit(raw, f"{_shown(raw)} is no number of attempts", "A whole number fits, as 3")
    return int(raw.text)


def _read_time(raw: RawValue) -> Value:
    try:
        if not _INSTANT.fullmatch(raw.text):
            return parse_duration(raw.text)
        moment = datetime.fromisoformat(raw.text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        fix = "A duration fits (15m, 2h, 1d12h), or a date or time in UTC (2026-11-01, 2026-11-01T12:00Z)"
        raise _misfit(raw, f"{_shown(raw)} is no time", fix) from None


def _read_truth(raw: RawValue) -> Value:
    truth = _TRUTH.get(ascii_lower(raw.text))
    if truth is None:
        raise _misfit(raw, f"{_shown(raw)} is neither yes nor no", "Write yes or no")
    return truth


_READERS: Mapping[Field, Callable[[RawValue], Value]] = MappingProxyType(
    dict.fromkeys(_TEXTUAL, _read_text)
    | dict.fromkeys(_TIMES, _read_time)
    | {
        Field.BACKEND: _read_backend,
        Field.CONDITION: _read_condition,
        Field.SIGNATURE: _read_signature,
        Field.ATTEMPTS: _read_attempts,
        Field.RECOVERABLE: _read_truth,
    }
)


@lru_cache(maxsize=256)
def _conditions(terms: tuple[Term, ...]) -> frozenset[Condition]:
    asked = [term for term in terms if term.field is Field.CONDITION]
    if not asked:
        return frozenset(NEEDS_EYES)
    return frozenset(c for c in Condition if all(term.matches_condition(c) for term in asked))


# --- pages ------------------------------------------------------------------------------------------


class SortField(StrEnum):
    UPDATED = "updated"
    CREATED = "created"
    NEXT = "next"
    ATTEMPTS = "attempts"
    TYPE = "type"
    ID = "id"


_ASCENDING_BY_NATURE = frozenset({SortField.NEXT, SortField.TYPE, SortField.ID})


@dataclass(frozen=True, slots=True)
class Sort:
    """An order; without a field, each backend's own, newest first."""

    field: SortField | None = None
    descending: bool = True

    @classmethod
    def parse(cls, text: str) -> Sort:
        """`updated`, `-updated` (descending), `updated:asc`, `updated:desc`.

        The word alone is the order one wants first: newest and most, but soonest `next`, and A to Z.
        """
        name, colon, direction = text.strip().lower().removeprefix("-").partition(":")
        minus = text.strip().startswith("-")
        if not name and not colon and not minus:
            return cls()
        if name not in list(SortField) or (colon and (minus or direction not in ("asc", "desc"))):
            fix = f"Write one of {', '.join(SortField)}, with :asc or :desc"
            raise UsageFault(f"{neutralise(quoted(text), 60)} is no order to sort by", fix=fix)
        field = SortField(name)
        return cls(field, direction == "desc" if colon else minus or field not in _ASCENDING_BY_NATURE)

    def __str__(self) -> str:
        return f"{self.field}:{'desc' if self.descending else 'asc'}" if self.field else ""


NATURAL = Sort()


class Cursor(NamedTuple):
    """Where a page begins or ends in one backend: the sorted value, and the key that breaks ties."""

    value: object
    is_null: bool
    key: tuple[object, ...]


class Page(NamedTuple):
    """Items in order. `next` and `previous` are the last and first row's cursors; None at that end.

    `scanned` says how many rows were read to find them, where the filter is more than the backend's.
    """

    items: tuple[Item, ...]
    next: Cursor | None
    previous: Cursor | None
    scanned: int | None = None
