"""One list over several backends: the worst and newest first, or merged by a chosen column.

Backends never see `backend:` terms, and see `cause:` terms only when they draft a plan. `backend:` terms are resolved
here. `cause:` terms filter the pages here, because no database can compute an error signature.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from console.core.backend import Backend, Buckets, Histogram, PageRequest, Timeline
from console.core.budget import ReadCosts
from console.core.default_order import default_rank, page_in_default_order
from console.core.faults import BackendFault, Fault, QueryFault, UsageFault
from console.core.item import Item
from console.core.ports import Never, Stop
from console.core.query import NATURAL, Cursor, Field, Filter, Page, Sort, SortField, Term

_PAGE = 500


def broken_promise(backend: Backend, error: Exception) -> BackendFault:
    """The fault for a plugin that raised something else. Its message is left out: it may contain a secret."""
    return BackendFault(f"plugin {backend.plugin} raised {type(error).__name__}", where=backend.name)


class SignatureMatch:
    """The `cause:` terms of a filter. A prefix that matches two causes is a fault."""

    def __init__(self, terms: Sequence[Term]) -> None:
        self._terms = terms
        self._met: dict[str, str] = {}

    def holds(self, signature: str | None) -> bool:
        if not all(term.matches_signature(signature) for term in self._terms):
            return False
        self.require_unambiguous(signature)
        return True

    def require_unambiguous(self, signature: str | None) -> None:
        if signature is None:
            return
        for term in self._terms:
            for value in term.values:
                if term.negated or not isinstance(value, str) or not signature.startswith(value):
                    continue
                first = self._met.setdefault(value, signature)
                if first != signature:
                    raise ambiguous_cause(term, value, first, signature)


def ambiguous_cause(term: Term, prefix: str, first: str, second: str) -> QueryFault:
    """The fault for a prefix that matches two causes."""
    return QueryFault(f"Cause {prefix} matches both {first} and {second}", column=term.column, fix="Write more digits.")


def page_of(backend: Backend, request: PageRequest, stop: Stop | None = None) -> Page:
    """One page of one backend with every term of the filter applied; empty when the filter excludes the backend."""
    asked = request.filter.for_backend(backend.name)
    if asked is None:
        return Page((), None, None)
    request = replace(request, sort=request.sort.within)
    terms = asked.terms_for(Field.CAUSE)
    plain = replace(request, filter=asked.without(Field.CAUSE))
    if not terms:
        return page_in_default_order(backend, plain)
    return _scanned(backend, plain, SignatureMatch(terms), stop or Never())


def _scanned(backend: Backend, request: PageRequest, match: SignatureMatch, stop: Stop) -> Page:
    found: list[Item] = []
    scanned = 0
    cursor: Cursor | None = request.after
    way_back: Cursor | None = None
    while not stop.requested:
        page = page_in_default_order(backend, replace(request, after=cursor, limit=_PAGE))
        fitting = [item for item in page.items if match.holds(item.signature)]
        if not scanned:
            way_back = page.next if request.backward else page.previous
        scanned += len(page.items)
        if request.backward:
            found[:0] = fitting
            cursor = page.previous
        else:
            found += fitting
            cursor = page.next
        if cursor is None or len(found) >= request.limit:
            break
    ahead, behind = (way_back, cursor) if request.backward else (cursor, way_back)
    return Page(tuple(found), ahead, behind, scanned)


@dataclass(slots=True)
class Listing:
    """Items of several backends in one order. A backend that fails is noted in `faults`; the others go on."""

    backends: Sequence[Backend]
    filter: Filter
    now: datetime
    sort: Sort = NATURAL
    limit: int | None = None
    stop: Stop = field(default_factory=Never)
    faults: dict[str, Fault] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    costs: ReadCosts | None = None
    """Where the cost of each backend is added up; None if nobody here does."""

    def __iter__(self) -> Iterator[Item]:
        streams = [
            self._stream(backend) for backend in self.backends if self.filter.for_backend(backend.name) is not None
        ]
        for number, item in enumerate(heapq.merge(*streams, key=merge_key(self.sort, self.now))):
            if number == self.limit or self.stop.requested:
                return
            yield item

    def _stream(self, backend: Backend) -> Iterator[Item]:
        limit = _PAGE if self.limit is None else min(max(self.limit, 1), _PAGE)
        request = PageRequest(self.filter, self.now, self.sort, limit=limit)
        try:
            self._require_sort(backend)
            while True:
                with self.costs.of(backend.name) if self.costs is not None else nullcontext():
                    page = page_of(backend, request, self.stop)
                self.answered.add(backend.name)
                yield from page.items
                if page.next is None or self.stop.requested:
                    return
                request = replace(request, after=page.next)
        except Fault as fault:
            if not isinstance(fault, BackendFault):
                raise
            self.faults[backend.name] = fault
        except Exception as error:  # noqa: BLE001  a faulty plugin must not break the list of the others
            self.faults[backend.name] = broken_promise(backend, error)

    def _require_sort(self, backend: Backend) -> None:
        if self.sort.within.field is not None and self.sort.field not in backend.sorts:
            offered = ", ".join(sorted(backend.sorts))
            fix = f"It can be sorted by {offered}." if offered else "It has only its own order."
            raise UsageFault(f"Cannot sort '{backend.name}' by {self.sort.field}", fix=fix)


class _Descending:
    """A value that sorts in descending order."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Descending) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Descending) and bool(self.value == other.value)


def _as_stored(text: str) -> bytes:
    """The bytes of a text, to compare as databases do."""
    return text.encode("utf-8", "surrogateescape" if "\ud800" not in text else "surrogatepass")


_VALUES: dict[SortField, Callable[[Item], Any]] = {
    SortField.UPDATED: lambda item: item.updated_at,
    SortField.CREATED: lambda item: item.created_at,
    SortField.NEXT: lambda item: item.verdict.next_retry_at,
    SortField.ATTEMPTS: lambda item: item.attempts,
    SortField.TYPE: lambda item: _as_stored(item.type) or None,
    SortField.BACKEND: lambda item: item.key.backend,
    SortField.ID: lambda item: tuple(map(_as_stored, item.key.parts)) if any(item.key.parts) else None,
}


def merge_key(sort: Sort, now: datetime, *, backward: bool = False) -> Callable[[Item], Any]:
    """By what the pages of different backends are merged; `backward` for a list that is read from its end."""
    forward = partial(default_rank, now=now) if sort.field is None else rank(sort)
    return (lambda item: _Descending(forward(item))) if backward else forward


def rank(sort: Sort) -> Callable[[Item], Any]:
    """The sort key for a chosen column. Items without a value come last in both directions."""
    assert sort.field is not None
    value_of = _VALUES[sort.field]

    def ranked(item: Item) -> Any:
        value = value_of(item)
        if value is None:
            return (1, 0)
        return (0, _Descending(value) if sort.descending else value)

    return ranked


def upcoming(
    backends: Sequence[Backend], filter: Filter, now: datetime, until: datetime, buckets: int,
    costs: ReadCosts | None = None,
) -> tuple[dict[str, Histogram], dict[str, Fault]]:
    """The next retries of each backend, and the faults of the backends that could not answer."""
    found: dict[str, Histogram] = {}
    faults: dict[str, Fault] = {}
    width, costs = (until - now) / buckets, costs or ReadCosts()
    for backend in backends:
        asked = filter.for_backend(backend.name)
        if asked is None:
            continue
        if asked.terms_for(Field.CAUSE):
            raise UsageFault("Upcoming retries cannot be filtered by cause", fix="Remove the cause: term.")
        try:
            with costs.of(backend.name):
                found[backend.name] = backend.histogram(Timeline.NEXT_RETRY, asked, now, Buckets(now, width, buckets))
        except BackendFault as fault:
            faults[backend.name] = fault
        except Exception as error:  # noqa: BLE001  as in Listing
            faults[backend.name] = broken_promise(backend, error)
    return found, faults
