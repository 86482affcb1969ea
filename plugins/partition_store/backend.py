"""The contract over a partition store: state in SQLite or PostgreSQL, raw runs on disk or in S3."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from console.core.backend import (
    Abilities,
    Authority,
    Change,
    Draft,
    Finding,
    Image,
    Operation,
    Outcome,
    Severity,
)
from console.core.faults import NoSuchItem, ReadOnlyRefused, Unreachable
from console.core.item import Attempt, Detail, Item, ItemKey
from console.core.policy import Exponential, PolicyOverride, RetryPolicy, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import Filter, Sort
from console.core.text import DETAIL_LIMIT, neutralise
from console.sql.backend import SqlBackend
from console.sql.checks import clock_finding, privilege_findings, require_columns
from console.sql.layout import Layout
from console.sql.open_database import open_database
from console.sql.reader import Reader
from console.sql.row_security import row_security_findings
from console.sql.values import text
from plugins.partition_store import schema
from plugins.partition_store.actions import OFFERED_ACTIONS, OFFERED_SWITCHES, ActionRules, PartitionAction, abilities
from plugins.partition_store.rows import Native, PartitionImage, PartitionRows, stored
from plugins.partition_store.sink import OutsideSink, Partition, RawSink, Run, open_sink, runs
from plugins.partition_store.tables import SAME_KEY, Joined, Marks, Tables
from plugins.partition_store.writing import PartitionWriter

if TYPE_CHECKING:
    from console.sql.postgres import PostgresDatabase
    from console.sql.sqlite import SqliteDatabase

_CHECKED_RUNS = 1_000
"""For how many partitions `check` looks for the current run."""

POLICY = RetryPolicy(
    backoff=Exponential(timedelta(minutes=5), multiplier=6.0, cap=timedelta(hours=2), jitter=0.2)
)
"""The recommended backoff, 5 min, 30 min, then 2 h; how many attempts and how old is the operator's to say."""


class Range(BaseModel):
    """The days each known series is expected to have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: date
    end: date | None = None

    @model_validator(mode="after")
    def _sensible(self) -> Range:
        last = self.end or date.today()  # noqa: DTZ011  a day more or less does not matter here
        if not timedelta(0) <= last - self.start <= schema.LONGEST_RANGE:
            raise ValueError(f"it spans {(last - self.start).days} days; 0 to {schema.LONGEST_RANGE.days} fit")
        return self


class Options(BaseModel):
    """The config keys of this plugin, besides `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str
    raw_sink: str
    control_url: str | None = None
    """Another database for the console's own table; by default it is in the database of the state."""
    range: Range | None = None
    validator: bool = False
    """The validator is `retriage run` on this backend, so a request in the control table is picked up."""
    handler: str | None = None
    s3: dict[str, Any] = Field(default_factory=dict)
    """Passed to the S3 client: endpoint, region, client_options. Credentials come from the environment."""


class PartitionStore(SqlBackend):
    """A partition store that belongs to someone else."""

    options = Options
    offered_actions = OFFERED_ACTIONS
    offered_switches = OFFERED_SWITCHES

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> PartitionStore:
        marks = Marks()

        def database(url: str) -> SqliteDatabase | PostgresDatabase:
            return open_database(url, read_only=read_only, deadline=deadline, functions=marks.functions)

        state = database(options.url)
        control = None if options.control_url in (None, options.url) else database(options.control_url)
        apart = control is not None and control.place != state.place
        sink = open_sink(options.raw_sink, deadline, options.s3)
        tables = Tables(state, control if apart else None, marks)
        return cls(name, options, policy.over(POLICY), tables, sink, read_only=read_only)

    @classmethod
    def systems(cls) -> dict[str, Abilities]:
        return {
            "partitions with Retriage's validator (validator: true)": abilities(ours=True),
            "partitions with another validator": abilities(ours=False),
        }

    def __init__(
        self, name: str, options: Options, policy: RetryPolicy, tables: Tables, sink: RawSink, *, read_only: bool
    ) -> None:
        database = Joined(tables) if tables.apart else tables.state
        apart = f", control: {tables.control.place}" if tables.apart else ""
        place = f"{tables.state.place} (raw: {sink.place}{apart})"
        super().__init__(name, "partition_store", place, database, policy)
        self.handler = options.handler
        self.abilities = abilities(ours=options.validator)
        self.tables = tables
        self.sink = sink
        self._expected = None if options.range is None else (options.range.start, options.range.end)
        self._read_only = read_only
        self._ours = options.validator
        self._rows = PartitionRows(name, policy, tables.time, ours=self._ours, lacks_run=self._lacks_run)
        self._without_run: frozenset[tuple[Partition, str]] = frozenset()
        """Current runs that do not exist in a remote sink, as `check` found them last."""
        self._rules = ActionRules(name, policy, self._rows, sink, ours=options.validator)
        self._writer = PartitionWriter(tables, str(policy.backoff or ""))
        self._joins = schema.Joins.NOWHERE

    @property
    def _reader(self) -> Reader:
        """The reader; a new one once the control table exists, no matter which program created it."""
        if self._joins is schema.Joins.NOWHERE and self._attached is not None and self.tables.has_control():
            self._attached = None
        return super()._reader

    def _layout(self) -> Layout:
        require_columns(self.tables.state, schema.TABLE, schema.STATE)
        if not self.tables.has_control():
            self._joins = schema.Joins.NOWHERE
        else:
            self._joins = schema.Joins.OTHER if self.tables.apart else schema.Joins.SAME
        return schema.layout(
            self.name,
            self.tables.state,
            self.policy,
            self.tables.time,
            self._rows,
            joins=self._joins,
            expected=self._expected,
            ours=self._ours,
        )

    # -- check -----------------------------------------------------------------------------------

    def check(self, clock: Clock) -> Sequence[Finding]:
        self._layout()
        found = [Finding(Severity.OK, "schema", f"table {schema.TABLE} is as expected"), self._sink_finding()]
        if self.policy.max_attempts is None:
            found.append(
                Finding(
                    Severity.WARNING,
                    "policy",
                    "no max_attempts: a failed partition is never terminal by its attempts",
                    "Set policy.max_attempts.",
                )
            )
        found += self._run_findings()
        found.append(self._control_finding())
        found += privilege_findings(self.tables.state, [schema.TABLE])
        found += row_security_findings(self)
        found.append(Finding(Severity.OK, "guard", "strong: attempt_count and updated_at change on every attempt"))
        found.append(clock_finding(self.tables.state, clock))
        return found

    def _control_finding(self) -> Finding:
        where = f"{schema.CONTROL} in {self.tables.control.place}"
        there = "is there" if self.tables.has_control() else "is created by the first action that needs it"
        return Finding(Severity.OK, "control table", f"{where} {there}")

    def _sink_finding(self) -> Finding:
        try:
            self.sink.sizes(Partition("retriage", "check", "check", "2000-01-01"))
        except Unreachable as fault:
            return Finding(
                Severity.WARNING, "raw sink", fault.detail, "Retry and reprocess are blocked until it is back."
            )
        return Finding(Severity.OK, "raw sink", f"{self.sink.place} answers")

    def _lacks_run(self, partition: Partition, run_id: str) -> bool:
        """Whether a run is known not to exist. In lists a remote sink is not asked: `check` has asked it."""
        if self.sink.far:
            return (partition, run_id) in self._without_run
        try:
            return partition.invalid is None and run_id not in self.sink.sizes(partition)
        except Unreachable:
            return False

    def _run_findings(self) -> Iterator[Finding]:
        """Whether the newest partitions have the run that `current_run_id` names."""
        rows = self.tables.fetch(
            f"SELECT {', '.join(schema.KEY)}, current_run_id FROM {schema.TABLE}"  # noqa: S608  names are ours
            f" WHERE current_run_id IS NOT NULL ORDER BY logical_date DESC LIMIT {_CHECKED_RUNS}",
            (),
        )
        named = [(Partition(*(text(stored(part)) for part in row[:4])), text(row[4])) for row in rows]
        try:
            self._without_run = self._rules.lookup().without_run(named)
        except Unreachable:
            return
        if missing := len(self._without_run):
            partition, run_id = min(self._without_run)
            yield Finding(
                Severity.ERROR,
                "invariant",
                f"{missing} of the newest {len(named)} partitions name a current run that the raw sink does not have:"
                f" {'/'.join(partition)} names {neutralise(run_id, 60)}",
                "Restore the runs, or have these partitions extracted and validated again.",
            )

    # -- one partition ---------------------------------------------------------------------------

    def item(self, key: ItemKey, now: datetime) -> Detail:
        rows = list(self._reader.rows([key], now))
        if not rows:
            raise NoSuchItem(str(key))
        native = Native(*rows[0])
        item = self._rows.read(rows[0], now)
        state = self._state(native.partition)
        error = text(state.get("error_message")) or None
        facts = self._rows.facts(native)
        shown = [(name, _shown(value)) for name, value in state.items()]
        shown += [
            (f"control.{name}", _shown(value))
            for name, value in self.tables.control_row(native.partition).items()
            if name not in schema.KEY
        ]
        found, problem = self._runs(native.partition)
        return Detail(
            item,
            error or item.error,
            tuple(_attempts(item, error, found)),
            tuple(schedule_ahead(facts, self.policy, item.verdict, now)),
            tuple(shown),
            problem or tuple(_run_lines(native, found)),
        )

    def _state(self, partition: Partition) -> dict[str, Any]:
        sql = f"SELECT {', '.join(schema.STATE)} FROM {schema.TABLE} WHERE {SAME_KEY}"  # noqa: S608  names are ours
        rows = self.tables.fetch(sql, partition)
        return dict(zip(schema.STATE, rows[0], strict=True)) if rows else {}

    def _runs(self, partition: Partition) -> tuple[list[Run], tuple[tuple[str, str], ...]]:
        """The runs in the raw sink, or why they cannot be known."""
        try:
            return runs(self.sink, partition), ()
        except OutsideSink as outside:
            return [], (("invalid", outside.detail),)
        except Unreachable as fault:
            return [], (("raw sink", fault.detail),)

    # -- actions ---------------------------------------------------------------------------------

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        lookup = self._rules.lookup()
        if isinstance(wanted, Filter):
            width = len(Native._fields)
            for batch in self._reader.walk(wanted, sort, None, now, stop, size=500):
                yield self._rules.drafts([Native(*row[:width]) for row in batch], operation, now, lookup)
            return
        rows = [Native(*row) for row in self._reader.rows(wanted, now)]
        found = {native.partition: native for native in rows}
        if operation.action == PartitionAction.BACKFILL:
            for key in wanted:
                if len(key.parts) == len(schema.KEY):
                    partition = Partition(*key.parts)
                    found.setdefault(partition, _absent(partition))
        yield self._rules.drafts(list(found.values()), operation, now, lookup)

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return self._rules.after(change, operation, at, due)

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority,  # noqa: ARG002
    ) -> Sequence[Outcome]:
        return self._writer.compare_and_set(changes, authority, self.now())

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        return self._writer.images(changes, read_only=self._read_only)

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:  # noqa: ARG002
        named = PartitionImage(*image)._asdict()
        return {name: value for name, value in named.items() if name != "signs"}

    # -- the validator -----------------------------------------------------------------------------

    def run(self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]) -> int:
        from plugins.partition_store.engine import Validator

        if self._read_only:
            raise ReadOnlyRefused(where=self.place)
        self._layout()
        return Validator(self.tables, self.sink, clock, handler).work(stop, log)


def _absent(partition: Partition) -> Native:
    empty: dict[str, Any] = dict.fromkeys(Native._fields)
    return Native(**{**empty, **partition._asdict(), "explicit": 0})


def _run_lines(native: Native, found: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """The runs, the current one marked, and a current one that does not exist."""
    current = native.current_run_id
    for run in found:
        yield f"run {run.run_id}{' (current)' if run.run_id == current else ''}", str(run)
    if not found:
        yield "raw sink", native.partition.invalid or "no run of this partition"
    if current is not None and current not in {run.run_id for run in found}:
        yield "invariant violation", f"current_run_id is {text(current)[:80]!r}, but there is no such run"


def _attempts(item: Item, error: str | None, found: Sequence[Run]) -> Iterator[Attempt]:
    """Every run that was extracted for an attempt, and the validator's last word; the state keeps no earlier ones."""
    last = Attempt(item.attempts, item.updated_at, item.native_status, error) if item.attempts else None
    for run in found:
        if last is not None and last.at is not None and run.at is not None and last.at <= run.at:
            yield last
            last = None
        yield Attempt(None, run.at, "run extracted", str(run))
    if last is not None:
        yield last


def _shown(value: Any) -> str | None:
    return None if value is None else text(stored(value))[:DETAIL_LIMIT]
