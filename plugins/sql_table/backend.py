"""The plugin contract for any table that a mapping describes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from console.core.backend import (
    Abilities,
    Action,
    Authority,
    Change,
    Draft,
    Finding,
    Image,
    Operation,
    Outcome,
    OutcomeKind,
)
from console.core.capabilities import FoundQueue
from console.core.faults import ConfigFault, NoSuchItem
from console.core.item import Attempt, Detail, ItemKey
from console.core.policy import PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Filter, Sort
from console.sql.backend import InspectingBackend
from console.sql.database import parse_url
from console.sql.layout import Layout
from console.sql.open_database import open_any_database
from console.sql.times import IsoText, zone_named
from console.sql.values import first_characters, native_columns, native_values, text
from plugins.sql_table.discovery import find_queues
from plugins.sql_table.guards import Guard, mapping_guards
from plugins.sql_table.history import past_attempts, require_history
from plugins.sql_table.layout import MappedLayout, own_policy
from plugins.sql_table.mapping import Options, TableMapping
from plugins.sql_table.presets import mapping_of, preset, preset_names, title_of
from plugins.sql_table.requeue import MappingPlanner, abilities_of
from plugins.sql_table.resolved import ResolvedMapping, resolve

if TYPE_CHECKING:
    from console.sql.open_database import AnyDatabase

_GONE = Outcome(OutcomeKind.CHANGED_SINCE, "no longer there")


@dataclass(frozen=True, slots=True)
class MappedTable:
    """Everything that depends on the attached database."""

    mapping: ResolvedMapping
    layout: MappedLayout
    planner: MappingPlanner | None
    guards: Mapping[str, Guard]
    """By action."""


class SqlTable(InspectingBackend[MappedTable]):
    """A queue table, read by a mapping."""

    options = Options
    schemes = ("postgresql", "postgres", "mysql", "mariadb", "sqlite")

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> SqlTable:
        mapping = mapping_of(options)
        functions = IsoText(zone_named(mapping.time_zone, options.where("time_zone"))).functions
        database = open_any_database(_in_utc(options.url), read_only=read_only, deadline=deadline, functions=functions)
        own = own_policy(mapping)
        # A constant limit becomes part of the policy, so that the config can override it.
        without_limit = mapping if own.max_attempts is None else mapping.model_copy(update={"max_attempts": None})
        return cls(name, options, without_limit, policy.over(own), database)

    @classmethod
    def systems(cls) -> dict[str, Abilities]:
        """The presets. What a mapping of one's own can do depends on its sections."""
        return {f"{title_of(name)} (preset: {name})": abilities_of(preset(name)) for name in preset_names()}

    @classmethod
    def discover(cls, url: str, *, deadline: timedelta) -> Sequence[FoundQueue]:
        return find_queues(cls, url, deadline)

    def __init__(
        self, name: str, options: Options, mapping: TableMapping, policy: RetryPolicy,
        database: AnyDatabase,
    ) -> None:
        table = f"{mapping.schema_}.{mapping.table}" if mapping.schema_ else mapping.table
        super().__init__(name, "sql_table", f"{database.place} ({options.preset or table})", database, policy)
        self.database = database
        self.mapping = mapping
        self.abilities = abilities_of(mapping)
        self._options = options

    # -- attaching -------------------------------------------------------------------------------

    def _inspect(self) -> tuple[Layout, MappedTable]:
        """Check the mapping against the database; raises WrongSchema if it does not fit."""
        resolved = resolve(self.database, self.mapping, self._options)
        layout = MappedLayout(self.name, resolved, self.policy)
        require_history(resolved)
        planner, guards = None, {}
        if self.mapping.requeue is not None:
            planner = MappingPlanner(resolved, layout, self.policy)
            guards = mapping_guards(resolved, layout, planner.image)
        return layout.build(), MappedTable(resolved, layout, planner, guards)

    def where(self, *loc: str | int) -> str:
        """The location of a key of the mapping."""
        return self._options.where(*loc)

    def check(self, clock: Clock) -> Sequence[Finding]:
        from plugins.sql_table.checks import findings

        self._inspect()
        return findings(self, clock)

    # -- requeue ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        planner = self.attached.planner
        assert planner is not None
        columns = planner.columns(operation)
        for rows in self._batches(wanted, sort, columns, now, stop):
            yield planner.drafts(rows, operation, now)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        planner = self.attached.planner
        assert planner is not None
        return planner.after(change, operation, at, due)

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority,  # noqa: ARG002
    ) -> Sequence[Outcome]:
        guard, fits = self.attached.guards[operation.action], self.attached.layout.fits
        sound = [n for n, change in enumerate(changes) if fits(change.keys[0].parts)]
        outcomes = dict(zip(sound, guard.compare_and_set([changes[n] for n in sound]), strict=True))
        return [outcomes.get(n, _GONE) for n in range(len(changes))]

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        guard, fits = self.attached.guards[Action.UNDO], self.attached.layout.fits
        found = guard.images([change.keys[0] for change in changes if fits(change.keys[0].parts)])
        return [found.get(change.keys[0]) for change in changes]

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:  # noqa: ARG002
        planner = self.attached.planner
        assert planner is not None
        return dict(zip((part.name for part in planner.image.parts), image, strict=False))

    # -- one item --------------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        attached = self.attached
        main = attached.mapping.main.c
        native = list(attached.mapping.table.columns)
        error = first_characters(attached.layout.error).label("whole_error")
        listed = self._reader.layout.segments[0].roles.row
        rows = list(self._reader.rows([key], now, (*listed, error, *native_columns(main[name] for name in native))))
        if not rows:
            raise NoSuchItem(str(key))
        row, full, stored = rows[0], rows[0][len(listed)], rows[0][len(listed) + 1 :]
        item = attached.layout.rows.read(row, now)
        facts = attached.layout.rows.facts(attached.layout.rows.stored(row))
        return Detail(
            item,
            item.error if full is None else text(full),
            past_attempts(attached.mapping, attached.layout, key, now) or self._last_attempt(item),
            tuple(schedule_ahead(facts, self.policy, item.verdict, now)),
            native_values(native, stored),
        )

    def _last_attempt(self, item: Any) -> tuple[Attempt, ...]:
        if item.attempts <= 0:
            return ()
        outcome = "failed" if item.error else item.native_status
        return (Attempt(item.attempts, item.executed_at or item.updated_at, outcome, item.error),)


def _in_utc(url: str) -> str:
    """The URL with UTC as the session's time zone, so that images do not depend on the server's setting."""
    try:
        parsed = parse_url(url)
    except ConfigFault:
        return url
    if parsed.get_backend_name() not in ("postgresql", "postgres"):
        return url
    given = parsed.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    changed = parsed.update_query_dict({"options": f"{options} -c timezone=UTC".strip()})
    return changed.render_as_string(hide_password=False)


