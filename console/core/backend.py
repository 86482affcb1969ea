"""The plugin contract. These protocols are the plugin author's manual; docs/plugins.md is a tutorial.

A plugin is a class with two attributes, `options` and `open` (`console.registry.Plugin`). `open` returns a backend: one
attached system. Every backend reads (`Backend`). One that also writes has the methods of `Requeues`. What else it can
do, it declares by having the methods of a smaller protocol: those at the end of this module, or in `core.capabilities`.

A backend is synchronous and may be called from several threads at once. It never creates or migrates anything in the
system it is attached to. Unless a method says otherwise, it may raise a `BackendFault` and no other exception, whatever
the rows contain.

A plugin for one SQL table does not write these methods itself: it declares the table (`console.sql.table`).

Test a backend with `console.testing.exercise_backend()`, and one that requeues items also with `exercise_requeue()`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, assert_never, runtime_checkable

from console.core.advice import Notice
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.query import NATURAL, Cursor, Filter, Page, Sort, SortField

if TYPE_CHECKING:
    from console.core.policy import RetryPolicy
    from console.core.ports import Clock, Stop

COUNT_CAP = 10_000


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One line of `retriage check`: what was checked, what was found, and what to do about it."""

    severity: Severity
    subject: str
    message: str
    fix: str = ""


class Count(NamedTuple):
    """How many; not exact means "at least", or "about" if it was estimated from a sample."""

    value: int
    exact: bool = True
    estimated: bool = False

    @property
    def sign(self) -> str:
        """What is written before the value."""
        return "" if self.exact else "~" if self.estimated else "≥ "

    def __str__(self) -> str:
        return f"{self.sign}{self.value}"


def total_of(counts: Iterable[Count]) -> Count:
    """The sum of these counts; estimated if one of them is."""
    found = list(counts)
    estimated = any(count.estimated for count in found)
    return Count(sum(count.value for count in found), all(count.exact for count in found), estimated)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """One keyset page. `backward` reads towards the start, and from the end when there is no cursor."""

    filter: Filter
    now: datetime
    sort: Sort = NATURAL
    after: Cursor | None = None
    limit: int = 100
    backward: bool = False


class Timeline(StrEnum):
    """Which time a histogram is over."""

    NEXT_RETRY = "next"
    UPDATED = "updated"


class Histogram(NamedTuple):
    """Items per bucket of `width` from `start`; `before` and `after` are what lies outside."""

    start: datetime
    width: timedelta
    counts: tuple[int, ...]
    before: int = 0
    after: int = 0


class Buckets(NamedTuple):
    """Spans of time of the same width, one after another."""

    start: datetime
    width: timedelta
    number: int

    def histogram(self, times: Iterable[datetime]) -> Histogram:
        """How many of these times are in each bucket."""
        edges = [self.start + self.width * n for n in range(self.number + 1)]
        counts = [0] * (self.number + 2)
        for at in times:
            counts[bisect_right(edges, at)] += 1
        return Histogram(self.start, self.width, tuple(counts[1:-1]), counts[0], counts[-1])


class ErrorBatch(NamedTuple):
    """Some rows of an error stream: (excerpt of the error, when), and how to read the when.

    The times are raw on purpose: they only need to compare with each other, and a million conversions
    for a handful of groups would cost more than the query.
    """

    rows: Sequence[tuple[str | None, Any]]
    instant: Callable[[Any], datetime | None]


class Backend(Protocol):
    """Reads items. Every backend does this.

    Its filters have no `backend:` terms, and no `cause:` terms except in `Requeues.drafts`. `filter.conditions()` are
    the conditions that are asked for. `filter.without(Field.CONDITION).matches(…)` applies the other terms to one item,
    for a store that cannot search.
    """

    name: str
    """Its name in the config, which is the first part of its items' keys."""
    plugin: str
    """The name of its plugin, as in the config."""
    place: str
    """Where it is attached, safe to show: a masked URL or a path, and the table."""
    policy: RetryPolicy
    """How its system retries: the plugin's own rules, with what the config says about them."""
    sorts: frozenset[SortField]
    """The columns a list can be sorted by; without one, pages come in the backend's own order."""

    def check(self, clock: Clock) -> Sequence[Finding]:
        """Check schema, privileges, the strength of the guard and the clock. Raises only BackendFault."""

    def now(self) -> datetime:
        """The backend's own clock, aware, in UTC."""

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        """How many items match the filter, for each condition that it asks for. A count above `cap` is a lower bound.

        With a cap, a count that would read a large table without an index may be estimated from a sample. Without a
        cap every count is exact.
        """

    def page(self, request: PageRequest) -> Page:
        """One page of items in a stable order: that of the sort, or the backend's own. An item without a value in the
        sorted column comes last. `Page.next` is None only at the end. Never reads the whole table if an index helps."""

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        """The errors of all items that match the filter, as excerpts, streamed until `stop` is requested."""

    def histogram(self, timeline: Timeline, filter: Filter, now: datetime, buckets: Buckets) -> Histogram:
        """How many matching items have their time in each bucket. Items without that time are not counted."""

    def item(self, key: ItemKey, now: datetime) -> Detail:
        """One item with its attempts, schedule, full error and native row. Raises `NoSuchItem` if there is none."""

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        """Several items as they are now. Items that do not exist are missing from the result."""

    def cancel(self) -> None:
        """Abort the reads that are running, from another thread. They raise a BackendFault."""

    def close(self) -> None:
        """Close connections and files."""


class Action(StrEnum):
    """The actions that every system may have. A plugin adds its own, see `console.core.capabilities`."""

    REQUEUE = "requeue"
    DISCARD = "discard"
    """Its own system gives the item up, and never runs it again."""
    UNDO = "undo"

    @property
    def label(self) -> str:
        """What a person does to an item."""
        match self:
            case Action.REQUEUE:
                return "requeue"
            case Action.DISCARD:
                return "discard"
            case Action.UNDO:
                return "restore"
            case _:
                assert_never(self)

    @property
    def done(self) -> str:
        """What was done to an item."""
        match self:
            case Action.REQUEUE:
                return "requeued"
            case Action.DISCARD:
                return "discarded"
            case Action.UNDO:
                return "restored"
            case _:
                assert_never(self)


class Attempts(StrEnum):
    """What a requeue does to the attempt counter."""

    KEEP = "keep"
    RESET = "reset"


class UndoKind(StrEnum):
    """What undoing a write means in this backend."""

    EXACT = "exact"
    COMPENSATING = "compensating"
    NONE = "none"


class Flag(StrEnum):
    """The switches that every system may have. A plugin adds its own, see `console.core.capabilities`."""

    INCLUDE_UNRECOVERABLE = "include_unrecoverable"
    RESPECT_BACKOFF = "respect_backoff"
    """Run no item before its policy's backoff is over, where the due time is stored in the row."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What a plan does to each of its items."""

    action: str = Action.REQUEUE
    """An `Action`, or the id of a plugin's own action."""
    attempts: Attempts = Attempts.KEEP
    flags: frozenset[str] = frozenset()
    """The switches that are on: `Flag`s, or ids of a plugin's own switches."""

    @property
    def discards(self) -> bool:
        """Whether this is a discard and not a requeue, for a plugin that has only these two.

        Any other action is an error: one that was added later must not be taken for a requeue.
        """
        match self.action:
            case Action.DISCARD:
                return True
            case Action.REQUEUE:
                return False
            case _:
                raise ValueError(f"neither a requeue nor a discard: {self.action}")


class Authority(NamedTuple):
    """Who has a write done, and why. Some systems store it."""

    who: str
    reason: str
    ticket: str | None
    override_id: str
    at: datetime | None = None
    """The time of this write as it is recorded. Together with the override's id it names one write."""


Image = tuple[Any, ...]
"""The columns that guard a write and the columns the action sets, as JSON values. Never error text or payload."""

GONE: Image = ()
"""The after-image of a unit that is deleted."""


class Draft(NamedTuple):
    """One selected item of a plan that is being made."""

    key: str
    """`str(ItemKey)`."""
    unit: str
    """Items with the same unit are written together. Empty where each item is written on its own."""
    before: Image | None
    """The image of its unit as it is now. None only for an item that is skipped."""
    condition: str
    signature: str | None = None
    skipped: Notice | None = None
    """Why it will not be changed."""
    warning: Notice | None = None


class Change(NamedTuple):
    """One guarded write: the unit goes from `before` to `after`, or is not touched."""

    unit: str
    keys: tuple[ItemKey, ...]
    before: Image
    after: Image


class OutcomeKind(StrEnum):
    """What a write did to one planned item."""

    APPLIED = "applied"
    CHANGED_SINCE = "changed"
    REJECTED = "rejected"
    UNKNOWN = "unknown"


class Outcome(NamedTuple):
    """What a write did to one planned item, and why."""

    kind: OutcomeKind
    detail: str = ""


APPLIED = Outcome(OutcomeKind.APPLIED)


class Throughput(NamedTuple):
    """How fast a system takes items: at most `items` in each cycle of its loop, which lasts `every`."""

    items: int
    every: timedelta

    def time_for(self, count: int) -> timedelta:
        """How long the system needs to take this many items, if no others are ahead of them."""
        return self.every * -(-count // self.items)


NO_DISCARD_RULE = "Its system has no rule for giving an item up."


class DiscardAbility(NamedTuple):
    """What a discard does in a backend, by the rule of its own system."""

    undo: UndoKind = UndoKind.EXACT
    """What undoing it means. `NONE` where it deletes. The same as for a requeue, or `NONE`."""
    deletes: bool = False
    """Items are deleted: all of them, or those in some conditions. The plan says so, and the number of items is always
    typed to confirm it."""
    takes_terminal: bool = False
    """Also takes terminal items, because its system has a way to close or delete them. Elsewhere they are skipped."""


class Deletion(NamedTuple):
    """How a system deletes rows: those of finished items at once or soon, those of failed items later or never."""

    keeps_failed: timedelta | None = None
    """How long it keeps the row of an item that it gave up. None: for ever."""


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a backend's writes can do. A plan shows it before it is confirmed."""

    actions: frozenset[str]
    attempts: frozenset[Attempts]
    undo: UndoKind
    stores_due_time: bool
    """A pace is written into the rows as due times. Otherwise the override itself waits between items."""
    guard: tuple[str, ...]
    """The columns of the before-image that guard a write."""
    guard_is_weak: bool = False
    """No guard column changes on every transition, so a change and a change back would go unnoticed."""
    flags: frozenset[str] = frozenset()
    """The switches that this backend looks at; any other changes nothing."""
    throughput: Throughput | None = None
    """How fast its system takes requeued items. A plan shows the forecast, and a canary waits at least as long.
    None if nothing but the number of workers limits it."""
    execution_counter: str | None = None
    """The column of the images that grows with every execution and that `Item.attempts` shows. It proves that an item
    was executed since its requeue, whatever the clocks say, and even if somebody else changes the row. None:
    `Item.executed_at` has to be later than the requeue; then only an execution may change that time. Needs
    `capabilities.NamesColumns`."""
    deletes_finished: Deletion | None = None
    """Its system deletes the rows of finished items, so that a missing row means that the item recovered. None: it
    keeps them, or deletes those of failed items just as early; then a missing row says nothing."""
    largest_write: int | None = None
    """How many changes one call may have, where a write stops the whole server until it is done."""
    tells_executions: bool = True
    """Whether its items show that they were executed. Without that, a canary could not be judged."""
    discard: DiscardAbility | None = None
    """What a discard does. None: there is none, and `Action.DISCARD` is not among the actions."""
    no_discard: str = NO_DISCARD_RULE
    """Why there is no discard."""

    def undo_of(self, action: str) -> UndoKind:
        """What undoing an action means."""
        if action == Action.DISCARD:
            return UndoKind.NONE if self.discard is None else self.discard.undo
        return self.undo


@runtime_checkable
class Requeues(Backend, Protocol):
    """A backend that can requeue items, and maybe discard them. Only plans and overrides call these methods.

    `drafts` makes a plan: each item with its image as it is now, the before-image. When the plan is applied, `after`
    computes what each write will leave, and `compare_and_set` writes where the before-image is still true. `images`
    reads the rows again: after a crash, to find out what was written, and to see whether an override can be undone.
    """

    abilities: Abilities

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, operation: Operation, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        """One draft for each selected item, skipped or not, in batches.

        For a filter, drafts come in the sort's order; for keys, in any order. Items of one unit come together, at the
        place of the first one. The filter may have `cause:` terms (`Term.matches_signature`). For a requeue, all items
        are skipped if the abilities do not have the operation's `attempts`. `core.action_rules` says which items may
        be discarded.
        """

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        """The image that a change will write; its own `after` is still empty.

        A pure function: `at` is the time of the write as it is recorded, so do not ask a clock. `due` is when the item
        may run; for a discard it is `at`. The image of a unit that a discard deletes is `GONE`. Only a backend whose
        undo is compensating is also asked for an undo; then `change.after` is the image before the override, and
        `change.before` the one after it.
        """

    def compare_and_set(
        self, changes: Sequence[Change], operation: Operation, authority: Authority
    ) -> Sequence[Outcome]:
        """Write every unit that still is as `before` says; one outcome for each change, in order. A store that has
        transactions writes them in one.

        A unit that differs from `before` is CHANGED_SINCE and not touched. A unit that the system refuses is REJECTED,
        and the others are written. If nobody can know whether the write happened (the connection was lost at commit),
        raise a BackendFault: the caller finds out by reading again.
        """

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        """The images of these units as they are now; None for a unit that is gone.

        A backend whose write takes several steps first finishes or reverts what a crash left between two of them,
        unless it was opened read-only. Each unit is then as `before` or as `after` says.
        """


@runtime_checkable
class ProvesWrites(Requeues, Protocol):
    """A backend that can tell what a write did, even after its system has changed the items again."""

    def were_written(self, changes: Sequence[Change], at: datetime, override_id: str) -> Sequence[bool | None]:
        """Whether each of these units was written by this override at `at`; None if nobody can tell.

        Asked after the images were read, and only about units that do not have the after-image. After a False, a
        write that is still under way must not happen any more.
        """


@runtime_checkable
class WarnsOfPlans(Requeues, Protocol):
    """A backend that knows what a requeue of many items does to its system as a whole."""

    def plan_warnings(self, changes: int) -> Sequence[Notice]:
        """The warnings for a plan that requeues this many items here."""


@runtime_checkable
class RunsEngine(Backend, Protocol):
    """A backend that includes its system's own worker loop (`retriage run`)."""

    handler: str | None
    """`package.module:function` from its config, for `retriage run` to import and pass on."""

    def run(self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]) -> int:
        """Work until `stop`; returns the number of executions."""
