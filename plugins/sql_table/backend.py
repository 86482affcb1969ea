"""The contract over any table a mapping describes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from console.core.backend import (
    Authority,
    Change,
    Draft,
    Finding,
    Image,
    Order,
    Outcome,
    OutcomeKind,
)
from console.core.faults import NoSuchItem
from console.core.item import Attempt, Detail, ItemKey
from console.core.policy import PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Filter, Sort
from console.core.text import DETAIL_LIMIT
from console.sql.backend import SqlBackend
from console.sql.database import Row
from console.sql.layout import Layout
from console.sql.opening import open_database
from console.sql.sqlite import SqliteDatabase
from console.sql.times import IsoText, zone_named
from console.sql.values import text
from plugins.sql_table.attaching import Attached, attach
from plugins.sql_table.history import past_attempts, require_history
from plugins.sql_table.mapping import Options, TableMapping
from plugins.sql_table.reading import Reading
from plugins.sql_table.requeue import Handing, abilities_of
from plugins.sql_table.shipped import mapping_of
from plugins.sql_table.writing import Guard, guard_for

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase

_GONE = Outcome(OutcomeKind.CONFLICTED, "no longer there")


@dataclass(frozen=True, slots=True)
class Known:
    """What only the attached tables can tell, and what follows from it."""

    attached: Attached
    reading: Reading
    handing: Handing | None
    guard: Guard | None


class SqlTable(SqlBackend):
    """A queue table that belongs to someone else, read by a mapping."""

    options = Options

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> SqlTable:
        mapping = mapping_of(options)
        functions = IsoText(zone_named(mapping.time_zone, options.where("time_zone"))).functions
        database = open_database(_in_utc(options.url), read_only=read_only, deadline=deadline, functions=functions)
        own = cls.own_policy(mapping)
        # A number that holds for every row is the system's own: what the config says differs from it wins.
        shown = mapping if own.max_attempts is None else mapping.model_copy(update={"max_attempts": None})
        return cls(name, options, shown, policy.over(own), database)

    @staticmethod
    def own_policy(mapping: TableMapping) -> RetryPolicy:
        """What the mapping itself says about every row."""
        constant = mapping.max_attempts.constant if mapping.max_attempts else None
        return RetryPolicy(max_attempts=constant, stuck_after=mapping.stuck_after)

    def __init__(
        self, name: str, options: Options, mapping: TableMapping, policy: RetryPolicy,
        database: SqliteDatabase | PostgresDatabase,
    ) -> None:
        shown = f"{mapping.schema_}.{mapping.table}" if mapping.schema_ else mapping.table
        super().__init__(name, "sql_table", f"{database.place} ({options.preset or shown})", database, policy)
        self.database = database
        self.mapping = mapping
        self.abilities = abilities_of(mapping)
        self._options = options
        self._known: Known | None = None

    # -- attaching -------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        layout, self._known = self._look()
        return layout

    def _look(self) -> tuple[Layout, Known]:
        """The tables as they are now; raises WrongSchema when the mapping does not fit them."""
        attached = attach(self.database, self.mapping, self._options)
        reading = Reading(self.name, attached, self.policy)
        require_history(attached)
        handing = guard = None
        if self.mapping.requeue is not None:
            handing = Handing(attached, reading, self.policy)
            guard = guard_for(attached, reading, handing.image)
        return reading.layout(), Known(attached, reading, handing, guard)

    @property
    def known(self) -> Known:
        """What is known of the tables, which are looked at first if they were not yet."""
        if self._known is None:
            self._reader  # noqa: B018  attaches
        assert self._known is not None
        return self._known

    def check(self, clock: Clock) -> Sequence[Finding]:
        from plugins.sql_table.checks import findings

        self._look()
        return findings(self, clock)

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        handing = self.known.handing
        assert handing is not None
        columns = (*self._reader.layout.segments[0].roles.row, *handing.columns())
        if isinstance(wanted, Filter):
            batches: Iterable[Sequence[Row]] = self._reader.walk(wanted, sort, columns, now, stop)
        else:
            batches = [list(self._reader.rows(wanted, now, columns))]
        for rows in batches:
            yield handing.drafts(rows, order, now)

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        handing = self.known.handing
        assert handing is not None
        return handing.after(change, order, at, due)

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:  # noqa: ARG002
        guard, fits = self.known.guard, self.known.reading.fits
        assert guard is not None
        sound = [n for n, change in enumerate(changes) if fits(change.keys[0].parts)]
        outcomes = dict(zip(sound, guard.swap([changes[n] for n in sound]), strict=True))
        return [outcomes.get(n, _GONE) for n in range(len(changes))]

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        guard, fits = self.known.guard, self.known.reading.fits
        assert guard is not None
        found = guard.images([change.keys[0] for change in changes if fits(change.keys[0].parts)])
        return [found.get(change.keys[0]) for change in changes]

    # -- one item --------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        known = self.known
        limit: Any = sa.literal_column(str(DETAIL_LIMIT))
        first: Any = sa.literal_column("1")
        names = list(known.attached.table.columns)
        native = [
            sa.func.substr(sa.cast(known.attached.main.c[name], sa.Text), first, limit).label(f"n{n}")
            for n, name in enumerate(names)
        ]
        error = sa.func.substr(known.reading.error, first, limit).label("whole")
        listed = self._reader.layout.segments[0].roles.row
        rows = list(self._reader.rows([key], now, (*listed, error, *native)))
        if not rows:
            raise NoSuchItem(str(key))
        row, full, stored = rows[0], rows[0][len(listed)], rows[0][len(listed) + 1 :]
        item = known.reading.rows.read(row, now)
        facts = known.reading.rows.facts(known.reading.rows.native(row))
        return Detail(
            item,
            item.error if full is None else text(full),
            past_attempts(known.attached, known.reading, key, now) or self._last_attempt(item),
            tuple(schedule_ahead(facts, self.policy, item.verdict, now)),
            tuple((name, None if value is None else text(value)) for name, value in zip(names, stored, strict=True)),
        )

    def _last_attempt(self, item: Any) -> tuple[Attempt, ...]:
        if item.attempts <= 0:
            return ()
        outcome = "failed" if item.error else item.native_status
        return (Attempt(item.attempts, item.executed_at or item.updated_at, outcome, item.error),)


def _in_utc(url: str) -> str:
    """PostgreSQL gives times with a zone in the session's zone; an image must not depend on the server's."""
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        return url
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        return url
    given = parsed.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    changed = parsed.update_query_dict({"options": f"{options} -c timezone=UTC".strip()})
    return changed.render_as_string(hide_password=False)


