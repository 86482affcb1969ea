"""The partitions that the options of a `state` command select: a series, its days, or a filter."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from console.core.backend import Backend
from console.core.faults import NotNarrowed, TooMany, UsageFault
from console.core.item import ItemKey
from console.core.plan import Marked, Matching, Selection
from console.core.query import Field, Filter, Glob, Op, Sort, Term
from console.core.session import Session

_DAY = timedelta(days=1)


def partition_store(session: Session, named: str | None) -> Backend:
    """The named backend, or the only one that stores partitions."""
    if named is not None:
        backend = session.backend(named)
        if not _stores_partitions(backend):
            raise UsageFault(f"{named} stores no partitions", fix="Use `retriage list` and `retriage requeue` for it.")
        return backend
    found = [backend for backend in session.backends if _stores_partitions(backend)]
    if len(found) > 1:
        names = ", ".join(backend.name for backend in found)
        raise UsageFault(f"Several backends store partitions: {names}", fix="Name one with --backend.")
    if found:
        return found[0]
    for unavailable in session.unavailable:
        if unavailable.plugin == "partition_store":
            raise unavailable.fault
    raise UsageFault("No backend stores partitions", fix="Configure one with `plugin: partition_store`.")


def _stores_partitions(backend: Backend) -> bool:
    return backend.plugin == "partition_store"


@dataclass(frozen=True, slots=True)
class PartitionSelection:
    """The partitions that the options of a `state` command select in one backend."""

    backend: str
    source: str | None
    customer_id: str | None
    query_name: str | None
    dates: tuple[date, ...]
    since: date | None
    until: date | None
    where: Filter
    named: tuple[ItemKey, ...]

    @classmethod
    def of(cls, args: Namespace, backend: str) -> PartitionSelection:
        named = tuple(ItemKey.parse(key) for key in args.key or ())
        others = (args.source, args.customer_id, args.query_name, args.logical_date, args.since, args.until, args.where)
        if named and any(others):
            raise UsageFault(
                "--key cannot be combined with the other options that select partitions",
                fix="Use --key alone, or leave it out.",
            )
        for key in named:
            if key.backend != backend:
                raise UsageFault(f"{key} is not in {backend}")
        dates = tuple(_date("--logical-date", text) for text in args.logical_date or ())
        since, until = (_date(f"--{name}", text) if text else None for name, text in
                        (("since", args.since), ("until", args.until)))
        if dates and (since or until):
            raise UsageFault("--logical-date cannot be combined with --since or --until", fix="Use one or the other.")
        if since and until and since > until:
            raise UsageFault(f"--since {since} is after --until {until}")
        return cls(backend, args.source, args.customer_id, args.query_name, dates, since, until,
                   Filter.parse(args.where), named)

    @property
    def is_series(self) -> bool:
        return None not in (self.source, self.customer_id, self.query_name)

    @property
    def keys(self) -> tuple[ItemKey, ...]:
        """The keys of the partitions, if they are named exactly; otherwise empty."""
        if self.named or not (self.is_series and self.dates) or self.where.terms:
            return self.named
        return tuple(self._key(day) for day in self.dates)

    def _key(self, day: date) -> ItemKey:
        series = (self.source or "", self.customer_id or "", self.query_name or "")
        return ItemKey(self.backend, (*series, day.isoformat()))

    def filter(self, conditions: str) -> Filter:
        """The selection as a filter of the query language, where a partition's day is its `created` time."""
        terms = [Term(Field.BACKEND, Op.EQUALS, (self.backend,))]
        if self.named:
            terms.append(Term(Field.KEY, Op.EQUALS, tuple(str(key) for key in self.named)))
        parts = (self.source, self.customer_id, self.query_name)
        if self.dates or any(part is not None for part in parts):
            days: list[str | None] = [day.isoformat() for day in self.dates]
            terms.append(Term(Field.KEY, Op.EQUALS, tuple(self._pattern(*parts, day) for day in days or [None])))
        if self.since:
            terms.append(Term(Field.CREATED, Op.AT_LEAST, (_midnight(self.since),)))
        if self.until and self.until < date.max:
            terms.append(Term(Field.CREATED, Op.BELOW, (_midnight(self.until + _DAY),)))
        own = Filter(tuple(terms)).and_(self.where)
        asked = self.where.terms_for(Field.CONDITION)
        return own if asked or not conditions else own.and_(Filter.parse(conditions))

    def _pattern(self, *parts: str | None) -> Glob:
        """A key with a star for each part that is not given. With the backend in front it is unambiguous."""
        pieces = [f"{self.backend}/"]
        for number, part in enumerate(parts):
            if part is None:
                pieces.append("")
            else:
                pieces[-1] += ItemKey(self.backend, (part,)).id
            if number < len(parts) - 1:
                pieces[-1] += "/"
        return Glob(tuple(pieces))

    def selection(self, conditions: str, *, limit: int | None, everything: bool) -> Selection:
        if keys := self.keys:
            return Marked(keys)
        self.require_narrow(everything)
        return Matching(self.filter(conditions), Sort(), limit, everything=True)

    def require_narrow(self, everything: bool) -> None:
        given = (self.source, self.customer_id, self.query_name, self.since, self.until)
        if everything or self.named or self.dates or self.where.narrows or any(part is not None for part in given):
            return
        raise NotNarrowed(
            fix="Add --source, --customer-id, --query-name, --logical-date or --since, or --all for all of them."
        )

    def days(self, today: date, most: int) -> Marked:
        """Every day of the range, newest first. Too many are refused before the list is made."""
        if self.dates:
            return Marked(self.keys)
        if self.since is None:
            raise UsageFault("A backfill needs its first day", fix="Add --since 2026-11-01.")
        last = self.until or today
        count = (last - self.since).days + 1
        if count < 1:
            raise UsageFault(f"--since {self.since} is after today, {today}")
        if count > most:
            raise TooMany(
                f"{count} days from {self.since} to {last} are selected, but a plan may have at most {most}",
                fix="Narrow --since and --until, or raise max_items in the config.",
            )
        return Marked(tuple(self._key(last - n * _DAY) for n in range(count)))


def _date(option: str, text: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.isoformat() != text:
        raise UsageFault(f"{option}: '{text}' is not a date", fix="Write it as 2026-11-09.")
    return found


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
