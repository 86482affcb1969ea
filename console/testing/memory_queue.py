"""A complete plugin for a queue that is a dict in memory. Copy it to start a plugin of your own.

docs/plugins.md explains it section by section. Everything that knows how rows are stored is in sections 2 and 4; the
rest stays much the same for any small store. A store with many rows answers page, counts and errors itself, as
console/sql does for SQL tables.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict

from console.core.action_rules import Decision, decide_discard
from console.core.advice import Advice, Notice, Step
from console.core.backend import (
    APPLIED,
    COUNT_CAP,
    Abilities,
    Action,
    Attempts,
    Authority,
    Buckets,
    Change,
    Count,
    DiscardAbility,
    Draft,
    ErrorBatch,
    Finding,
    Flag,
    Histogram,
    Image,
    Operation,
    Outcome,
    OutcomeKind,
    PageRequest,
    Requeues,
    Severity,
    Timeline,
    UndoKind,
)
from console.core.excerpt import excerpt
from console.core.faults import NoSuchItem, ReadOnlyRefused
from console.core.item import Attempt, Condition, Detail, Item, ItemKey
from console.core.listing import rank
from console.core.policy import Facts, Phase, PolicyOverride, RetryPolicy, judge, schedule_ahead
from console.core.ports import Clock, Stop
from console.core.query import COLUMN_SORTS, Cursor, Field, Filter, Page, Sort

Row = dict[str, Any]

# --- 1. Config and opening ----------------------------------------------------------------------------------

STORES: dict[str, dict[str, Row]] = {}
"""The queues of this process by name. A real plugin connects to something instead."""

OWN_POLICY = RetryPolicy(max_attempts=3, stuck_after=timedelta(minutes=6))
"""What this system does by itself. The `policy:` section of the config changes parts of it."""


class Options(BaseModel):
    """The config keys of this plugin, besides `plugin` and `policy`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    store: str


class SystemClock:
    """The clock of this machine. A database backend asks its server instead."""

    def now(self) -> datetime:
        return datetime.now(UTC)

    def sleep(self, seconds: float) -> None:
        threading.Event().wait(seconds)


# --- 2. From a row to an item -------------------------------------------------------------------------------

# Every native status this plugin knows. Any other value is shown as it is, with the condition `unknown`.
#
#   ready      waiting before the first attempt, retrying after it
#   running    running, stuck after the policy's stuck_after
#   failed     failed, terminal when no attempts are left or the error is unrecoverable
#   done       done
#   cancelled  cancelled
PHASES: Mapping[str, Phase] = {
    "ready": Phase.READY,
    "running": Phase.RUNNING,
    "failed": Phase.FAILED,
    "done": Phase.DONE,
    "cancelled": Phase.CANCELLED,
}


def facts_of(row: Mapping[str, Any]) -> tuple[Facts, tuple[str, ...]]:
    """What a row says, and notes on values that make no sense. It never raises, whatever the row contains."""
    raw, status, error = row.get("attempts"), row.get("status"), row.get("error")
    attempts = max(raw, 0) if isinstance(raw, int) else 0
    times = {name: time_of(row.get(name)) for name in ("due", "created", "updated")}
    notes = [f"{name} is not a time" for name, at in times.items() if at is None and row.get(name) is not None]
    if attempts != raw:
        notes.append(f"attempts is {raw!r}, read as {attempts}")
    phase = PHASES.get(status, Phase.UNKNOWN) if isinstance(status, str) else Phase.UNKNOWN
    limit = row.get("max_attempts")
    facts = Facts(
        phase,
        "" if status is None else str(status),
        attempts,
        max_attempts=limit if isinstance(limit, int) else None,
        error=excerpt(error) if isinstance(error, str) else None,
        due_at=times["due"] if phase is Phase.READY else None,
        since=times["updated"],
        born_at=times["created"],
    )
    return facts, tuple(notes)


def time_of(raw: Any) -> datetime | None:
    return raw if isinstance(raw, datetime) and raw.tzinfo is not None else None


# --- 3. Reading ---------------------------------------------------------------------------------------------


class MemoryReader:
    """Reads a queue in a dict: id → status, attempts, max_attempts, due, error, type, created, updated, reference."""

    options: ClassVar[type[BaseModel]] = Options
    plugin = "memory_queue"
    sorts = COLUMN_SORTS

    def __init__(
        self,
        name: str = "memory",
        rows: dict[str, Row] | None = None,
        policy: RetryPolicy = OWN_POLICY,
        clock: Clock | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.name = name
        self.place = "memory"
        self.rows = {} if rows is None else rows
        self.policy = policy
        self.clock = clock or SystemClock()
        self.read_only = read_only
        self._lock = threading.RLock()

    @classmethod
    def open(
        cls, name: str, options: Options, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> Self:
        """Attach to the configured store. Raise a BackendFault if it cannot be reached."""
        del deadline  # a read from memory never takes long
        return cls(name, STORES.setdefault(options.store, {}), policy.over(OWN_POLICY), read_only=read_only)

    def check(self, clock: Clock) -> Sequence[Finding]:
        """Reports on schema, guard and clock, each with a fix if it is not OK."""
        skew = abs(self.now() - clock.now())
        return [
            Finding(Severity.OK, "schema", "rows are dicts"),
            Finding(Severity.OK, "guard", "updated changes on every transition"),
            Finding(Severity.OK, "clock", "agrees with this machine")
            if skew <= timedelta(seconds=5)
            else Finding(Severity.WARNING, "clock", f"differs by {skew}", fix="Synchronise the clocks."),
        ]

    def now(self) -> datetime:
        return self.clock.now()

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        found = Counter(item.condition for item in self._matching(filter, now))
        return {
            condition: Count(found[condition]) if cap is None or found[condition] <= cap else Count(cap, exact=False)
            for condition in filter.conditions()
        }

    def page(self, request: PageRequest) -> Page:
        """One page after the cursor. The cursor is the sort value of a row and its position in the queue."""
        positions = {id: position for position, id in enumerate(self.rows)}
        placed = [
            (_cursor(item, positions[item.key.parts[0]], request.sort), item)
            for item in self._matching(request.filter, request.now)
        ]
        placed.sort(key=lambda pair: _sort_key(pair[0], request.sort), reverse=request.backward)
        beyond = [pair for pair in placed if request.after is None or _is_beyond(pair[0], request.after, request)]
        shown = beyond[: request.limit]
        if request.backward:
            shown.reverse()
        if not shown:
            return Page((), None, None)
        more, came_from = len(beyond) > request.limit, request.after is not None
        after, before = (came_from, more) if request.backward else (more, came_from)
        items = tuple(item for _, item in shown)
        return Page(items, shown[-1][0] if after else None, shown[0][0] if before else None)

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        found = [(item.error, item.updated_at) for item in self._matching(filter, now)]
        for start in range(0, len(found), 100):
            if stop.requested:
                return
            yield ErrorBatch(found[start : start + 100], lambda at: at)

    def histogram(self, timeline: Timeline, filter: Filter, now: datetime, buckets: Buckets) -> Histogram:
        items = self._matching(filter, now)
        upcoming = timeline is Timeline.NEXT_RETRY
        times = [item.verdict.next_retry_at if upcoming else item.updated_at for item in items]
        return buckets.histogram(at for at in times if at is not None)

    def item(self, key: ItemKey, now: datetime) -> Detail:
        found = self.items([key], now).get(key)
        if found is None:
            raise NoSuchItem(str(key))
        row = self.rows[key.parts[0]]
        facts, _ = facts_of(row)
        error = row.get("error")
        return Detail(
            found,
            error if isinstance(error, str) else None,
            (Attempt(found.attempts, found.updated_at, "failed", found.error),) if found.attempts else (),
            tuple(schedule_ahead(facts, self.policy, found.verdict, now)),
            tuple((name, None if value is None else str(value)) for name, value in row.items()),
        )

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        return {key: self._item(key.parts[0], now) for key in keys if self._row(key) is not None}

    def cancel(self) -> None:
        """Nothing here takes long enough to be cancelled."""

    def close(self) -> None:
        """Nothing is held open."""

    def references(self, item: Item) -> Sequence[str]:
        """What a bare word in a filter also looks at."""
        reference = self.rows[item.key.parts[0]].get("reference")
        return [reference] if isinstance(reference, str) else []

    def _matching(self, filter: Filter, now: datetime) -> list[Item]:
        conditions, rest = filter.conditions(), filter.without(Field.CONDITION)
        items = [self._item(id, now) for id in list(self.rows)]
        return [
            item for item in items
            if item.condition in conditions and rest.matches(self._whole(item), now, self.references(item))
        ]

    def _whole(self, item: Item) -> Item:
        """The item with its whole error, which is what filters look at. Lists show an excerpt of a long one."""
        error = self.rows[item.key.parts[0]].get("error")
        return item._replace(error=error if isinstance(error, str) else None)

    def _item(self, id: str, now: datetime) -> Item:
        row = self.rows[id]
        facts, notes = facts_of(row)
        return Item(
            ItemKey(self.name, (id,)),
            str(row.get("type") or ""),
            facts.native_status,
            facts.attempts,
            self.policy.max_attempts if facts.max_attempts is None else facts.max_attempts,
            judge(facts, self.policy, now),
            facts.error,
            facts.born_at,
            time_of(row.get("updated")),
            now,
            notes=notes,
        )

    def _row(self, key: ItemKey) -> Row | None:
        return self.rows.get(key.parts[0]) if key.backend == self.name and len(key.parts) == 1 else None


# --- 4. Requeue, discard and undo ---------------------------------------------------------------------------


class MemoryQueue(MemoryReader):
    """The same queue, which can also be written: it requeues and discards items, and undoes that."""

    abilities = Abilities(
        actions=frozenset({Action.REQUEUE, Action.DISCARD, Action.UNDO}),
        attempts=frozenset(Attempts),
        undo=UndoKind.EXACT,
        stores_due_time=True,
        guard=("status", "attempts", "updated"),
        flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}),
        execution_counter="attempts",
        discard=DiscardAbility(),
    )

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        """Every selected item, with its values now, and a reason if it will be skipped."""
        if stop.requested:
            return
        if isinstance(wanted, Filter):
            chosen = self.page(PageRequest(wanted, now, sort, limit=len(self.rows) + 1)).items
        else:
            chosen = tuple(self.items(wanted, now).values())
        yield [self.draft(item, operation) for item in chosen]

    def draft(self, item: Item, operation: Operation) -> Draft:
        image = self.image(item.key)
        assert image is not None
        decision = Decision(self.skip(item, operation))
        if operation.discards and (discard := self.abilities.discard) is not None:
            decision = decide_discard(item.condition, takes_terminal=discard.takes_terminal)
        return Draft(str(item.key), "", image, item.condition, item.signature, *decision)

    def skip(self, item: Item, operation: Operation) -> Notice | None:
        """Why this item will not be requeued, and what would help; None if it will be."""
        if item.condition not in (Condition.FAILED, Condition.TERMINAL, Condition.STUCK):
            return Notice(f"It is {item.condition}.")
        if item.verdict.recoverable is False and Flag.INCLUDE_UNRECOVERABLE not in operation.flags:
            return Notice("Its error is unrecoverable.", Advice(Step.TURN_ON, Flag.INCLUDE_UNRECOVERABLE.value))
        return None

    def image(self, key: ItemKey) -> Image | None:
        """The guard columns and the columns that an action sets, as JSON values. Never an error text or a payload."""
        row = self._row(key)
        if row is None:
            return None
        values = (row.get(name) for name in ("status", "attempts", "due", "updated"))
        return tuple(value.isoformat() if isinstance(value, datetime) else value for value in values)

    def columns_of(self, key: ItemKey, image: Image) -> Mapping[str, Any]:
        """The names of what `image` returns, so that a plan can show what changes by name."""
        del key  # every row has the same columns
        return dict(zip(("status", "attempts", "due", "updated"), image, strict=True))

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        """What the row will be. Pure: it uses the clock value it is given, so that a crash can be reconciled."""
        if operation.discards:
            return ("cancelled", *change.before[1:3], at.isoformat())
        attempts = 0 if operation.attempts is Attempts.RESET else change.before[1]
        return ("ready", attempts, due.isoformat(), at.isoformat())

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority
    ) -> Sequence[Outcome]:
        """Write each change if its row is still exactly as planned. In SQL this is one guarded UPDATE."""
        del operation, authority  # this queue does not store who changed it, or why
        if self.read_only:
            raise ReadOnlyRefused(where=self.place)
        with self._lock:
            return [self.write(change) for change in changes]

    def write(self, change: Change) -> Outcome:
        if self.image(change.keys[0]) != change.before:
            return Outcome(OutcomeKind.CHANGED_SINCE, "changed since the plan")
        self.put(change)
        return APPLIED

    def put(self, change: Change) -> None:
        status, attempts, due, updated = change.after
        row = self.rows[change.keys[0].parts[0]]
        row.update(status=status, attempts=attempts, due=_from_image(due), updated=_from_image(updated))

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        """The rows as they are now, to find out after a crash what was written."""
        return [self.image(change.keys[0]) for change in changes]


# --- 5. Details of paging -----------------------------------------------------------------------------------


def _cursor(item: Item, position: int, sort: Sort) -> Cursor:
    if sort.field is None:
        return Cursor(None, False, (position,))
    ranked = rank(sort)(item)
    return Cursor(ranked, ranked[0] == 1, (position,))


def _sort_key(cursor: Cursor, sort: Sort) -> tuple[Any, Any]:
    """Rows with equal values are in queue order, or in the reverse of it when the sort is descending."""
    position: Any = cursor.key[0]
    return (cursor.value if sort.field else 0, -position if sort.descending else position)


def _is_beyond(cursor: Cursor, edge: Cursor, request: PageRequest) -> bool:
    here, there = _sort_key(cursor, request.sort), _sort_key(edge, request.sort)
    return here < there if request.backward else there < here


def _from_image(value: Any) -> Any:
    """A time that an image holds as text; any other value as it is, so that an undo restores it exactly."""
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return value


if TYPE_CHECKING:

    def _complete(queue: MemoryQueue) -> Requeues:
        """mypy reports here if a method of the contract is missing or has another signature."""
        return queue
