"""Which partitions an operator means: a series, its days, or a filter."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from console.core.backend import Action, Backend, Requeues
from console.core.desk import Desk
from console.core.faults import NotNarrowed, TooMany, UsageFault
from console.core.item import ItemKey
from console.core.plan import Marked, Matching, Selection
from console.core.query import Field, Filter, Glob, Op, Sort, Term

_DAY = timedelta(days=1)
_ANY = "*"


def partition_store(desk: Desk, named: str | None) -> Backend:
    """The backend that is meant: the one named, or the only one that keeps partitions."""
    if named is not None:
        backend = desk.backend(named)
        if not _keeps_partitions(backend):
            raise UsageFault(f"{named} keeps no partitions", fix="`retriage list` and `requeue` are for every backend.")
        return backend
    found = [backend for backend in desk.backends if _keeps_partitions(backend)]
    if len(found) > 1:
        names = ", ".join(backend.name for backend in found)
        raise UsageFault(f"several backends keep partitions: {names}", fix="Name one with --backend.")
    if found:
        return found[0]
    for lost in desk.unavailable:
        if lost.plugin == "partition_store":
            raise lost.fault
    raise UsageFault("no backend keeps partitions", fix="Configure one with `plugin: partition_store`.")


def _keeps_partitions(backend: Backend) -> bool:
    return isinstance(backend, Requeues) and Action.BACKFILL in backend.abilities.actions


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the options of a `state` command select in one backend."""

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
    def of(cls, args: Namespace, backend: str) -> Wanted:
        named = tuple(ItemKey.parse(key) for key in args.key or ())
        others = (args.source, args.customer_id, args.query_name, args.logical_date, args.since, args.until, args.where)
        if named and any(others):
            raise UsageFault("--key names the partitions, so nothing else can select", fix="Leave the rest out.")
        for key in named:
            if key.backend != backend:
                raise UsageFault(f"{key} is not a partition of {backend}")
        dates = tuple(_date("--logical-date", text) for text in args.logical_date or ())
        since, until = (_date(f"--{name}", text) if text else None for name, text in
                        (("since", args.since), ("until", args.until)))
        if dates and (since or until):
            raise UsageFault("--logical-date and a range cannot both name the days", fix="Use one or the other.")
        if since and until and since > until:
            raise UsageFault(f"--since {since} is after --until {until}")
        return cls(backend, args.source, args.customer_id, args.query_name, dates, since, until,
                   Filter.parse(args.where), named)

    @property
    def is_series(self) -> bool:
        return None not in (self.source, self.customer_id, self.query_name)

    @property
    def keys(self) -> tuple[ItemKey, ...]:
        """The partitions, where they are named exactly."""
        if self.named or not (self.is_series and self.dates) or self.where.terms:
            return self.named
        return tuple(self._key(day) for day in self.dates)

    def _key(self, day: date) -> ItemKey:
        series = (self.source or "", self.customer_id or "", self.query_name or "")
        return ItemKey(self.backend, (*series, day.isoformat()))

    def filter(self, conditions: str) -> Filter:
        """As a filter of the query language, in which the day is when a partition was created."""
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
        """A key with a star for each part that is not said; with its backend in front it has only one reading."""
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
        said = (self.source, self.customer_id, self.query_name, self.since, self.until)
        if everything or self.named or self.dates or self.where.narrows or any(part is not None for part in said):
            return
        raise NotNarrowed(
            fix="Name --source, --customer-id, --query-name, --logical-date or --since, or say --all if all is meant."
        )

    def days(self, today: date, most: int) -> Marked:
        """Every day of the range, newest first; refused with the count before one is made when there are too many."""
        if self.dates:
            return Marked(self.keys)
        if self.since is None:
            raise UsageFault("a backfill needs to know from which day on", fix="Add --since 2026-11-01.")
        last = self.until or today
        count = (last - self.since).days + 1
        if count < 1:
            raise UsageFault(f"--since {self.since} is after today, {today}")
        if count > most:
            raise TooMany(
                f"{count} days from {self.since} to {last} are selected, at most {most} are allowed in one plan",
                fix="Narrow --since and --until, or raise max_items in the config.",
            )
        return Marked(tuple(self._key(last - n * _DAY) for n in range(count)))


def _date(option: str, text: str) -> date:
    try:
        found = date.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.isoformat() != text:
        raise UsageFault(f"{option} {text!r} is not a date", fix="Write it as 2026-11-09.")
    return found


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
