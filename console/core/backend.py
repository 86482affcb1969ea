"""The plugin contract. These protocols are the plugin author's manual.

A backend is synchronous and may be called from several threads at once. It reads; what else it can do it
says by also being one of the capabilities below. It never creates or migrates anything in the system it is
attached to. Every method may raise a `BackendFault`; nothing else may escape, whatever the rows contain.

Hold a backend to the contract with `console.testing.exercise_backend()`, and one that hands items back with
`exercise_requeue()` too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from console.core.columns import Columns, woven
from console.core.item import Condition, Detail, Item, ItemKey
from console.core.query import NATURAL, Cursor, Filter, Page, Sort, SortField

if TYPE_CHECKING:
    from console.core.policy import RetryPolicy
    from console.core.ports import Clock, Stop

COUNT_CAP = 10_000
_PLAIN = bytes(range(0x20, 0x7F)).translate(None, b'"\\')
"""What stands in JSON as it is."""


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


class Finding(NamedTuple):
    """One line of `retriage check`: what was looked at, what was found, what to do about it."""

    severity: Severity
    subject: str
    message: str
    fix: str = ""


class Count(NamedTuple):
    """How many; not exact means "at least"."""

    value: int
    exact: bool = True

    def __str__(self) -> str:
        return str(self.value) if self.exact else f"≥ {self.value}"


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


class ErrorBatch(NamedTuple):
    """Some rows of an error stream: (first ERROR_HEAD characters, when), and how to read the when.

    The times are raw on purpose: they only need to compare with each other, and a million conversions
    for a handful of groups would cost more than the query.
    """

    rows: Sequence[tuple[str | None, Any]]
    instant: Callable[[Any], datetime | None]


class Backend(Protocol):
    """What every backend can do: read."""

    name: str
    plugin: str
    place: str
    """Where it is attached, safe to show: a masked URL or a path, and the table."""
    policy: RetryPolicy
    sorts: frozenset[SortField]
    """The columns a list can be sorted by; without one, pages come in the backend's own order."""

    def check(self, clock: Clock) -> Sequence[Finding]:
        """Reachable, schema as expected, privileges, guard strength, clock skew. Raises only BackendFault."""

    def now(self) -> datetime:
        """The backend's own clock, aware, in UTC."""

    def counts(self, filter: Filter, now: datetime, cap: int | None = COUNT_CAP) -> Mapping[Condition, Count]:
        """Items per condition among those the filter asks for; above `cap` a count is a lower bound."""

    def page(self, request: PageRequest) -> Page:
        """One page of judged items in a stable order. Never reads the whole table where an index serves it."""

    def errors(self, filter: Filter, now: datetime, stop: Stop) -> Iterator[ErrorBatch]:
        """The error heads of everything the filter asks for, streamed; ends early when `stop` is requested."""

    def histogram(
        self,
        timeline: Timeline,
        filter: Filter,
        now: datetime,
        start: datetime,
        width: timedelta,
        buckets: int,
    ) -> Histogram:
        """How the times of what the filter asks for are spread. Items without that time are not in it."""

    def item(self, key: ItemKey, now: datetime) -> Detail:
        """One item with history, schedule, full error and native row; `NoSuchItem` when there is none."""

    def items(self, keys: Sequence[ItemKey], now: datetime) -> Mapping[ItemKey, Item]:
        """Several items as they are now; those that don't exist are missing from the answer."""

    def cancel(self) -> None:
        """From another thread: give up whatever is being read now. The reader gets a BackendFault."""

    def close(self) -> None:
        """Let go of connections and files."""


class Action(StrEnum):
    """Every kind of operator write."""

    REQUEUE = "requeue"
    REPROCESS = "reprocess"
    MARK_TERMINAL = "mark_terminal"
    CLEAR_TERMINAL = "clear_terminal"
    PAUSE = "pause"
    UNPAUSE = "unpause"
    BACKFILL = "backfill"
    UNDO = "undo"


class Budget(StrEnum):
    """What a requeue does to the attempt counter."""

    KEEP = "keep"
    FRESH = "fresh"


class UndoKind(StrEnum):
    """What undoing a write means in this backend."""

    EXACT = "exact"
    COMPENSATING = "compensating"
    NONE = "none"


class Flag(StrEnum):
    """What an operator may insist on; each is recorded."""

    CLEAR_TERMINAL = "clear_terminal"
    ALLOW_UNRECOVERABLE = "allow_unrecoverable"
    WAKE_TASK = "wake_task"
    BACK_OFF = "back_off"
    """Not before the policy's backoff is over, where the due time is ours to store."""


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done to every item of a plan."""

    action: Action = Action.REQUEUE
    budget: Budget = Budget.KEEP
    flags: frozenset[Flag] = frozenset()


class Authority(NamedTuple):
    """Whose order a write is; some systems store it."""

    who: str
    reason: str
    ticket: str | None
    op_id: str


Image = tuple[Any, ...]
"""The guard's columns and the columns the action assigns, as JSON values. Never error text or payload."""


def image_text(image: Sequence[Any]) -> str:
    """An image as a plan stores it. Flat images of text and numbers, the usual ones, are put together by hand."""
    parts = []
    for value in image:
        if value is None:
            parts.append("null")
        elif type(value) is str:
            parts.append(encode_basestring_ascii(value))
        elif type(value) is int:
            parts.append(str(value))
        else:
            return json.dumps(image, separators=(",", ":"))
    return f"[{','.join(parts)}]"


def image_texts(columns: Sequence[Sequence[Any]]) -> list[str]:
    """Many flat images, given column by column, each as `image_text` writes it."""
    count = len(columns[0])
    line, varying = ["["], []
    for n, column in enumerate(columns):
        values, quote = _varying(column)
        if values is None:
            return [image_text(row) for row in zip(*columns, strict=True)]
        line[-1] += "," if n else ""
        if values:
            line[-1] += quote
            line.append(quote)
            varying.append(values)
        else:
            line[-1] += image_text(column[:1])[1:-1]
    line[-1] += "]\n"
    return woven(line, varying).split("\n")[:-1] if varying else [line[0][:-1]] * count


def _varying(column: Sequence[Any]) -> tuple[Sequence[str] | None, str]:
    """A column's values as an image has them, between which quotes: no values where all are the same, None where they
    have to be written one by one."""
    kinds = set(map(type, column))
    if len(kinds) > 1 or not kinds <= {int, str, type(None)}:
        return None, ""
    if column.count(column[0]) == len(column):
        return (), ""
    if kinds == {int}:
        return list(map(str, column)), ""
    text = "".join(column)
    plain = text.isascii() and not text.encode().translate(None, _PLAIN)
    return (column if plain else None), '"'


class Draft(NamedTuple):
    """One item of a plan: its key as text, its write unit, its before-image as JSON text, and why it is
    blocked if it is. Plain tuples of text, because a plan may have a million of them."""

    key: str
    unit: str
    before: str
    condition: str
    signature: str | None = None
    blocked: str | None = None
    warning: str | None = None


Said = tuple[str, str | None, str | None, str | None]
"""What is said of an item beside where and how it is: condition, signature, blocked, warning."""


class Drafts(Columns[Draft]):
    """Many drafts, column by column."""

    __slots__ = ("befores", "keys", "said", "units")

    def __init__(
        self, keys: Sequence[str], units: Sequence[str], befores: Sequence[str], said: Sequence[Said]
    ) -> None:
        self.keys = keys
        self.units = units
        self.befores = befores
        self.said = said

    @classmethod
    def of(cls, drafts: Sequence[Draft]) -> Drafts:
        if isinstance(drafts, Drafts):
            return drafts
        keys, units, befores, *said = zip(*drafts, strict=True) if drafts else ((),) * len(Draft._fields)
        return cls(keys, units, befores, list(zip(*said, strict=True)))

    def _columns(self) -> tuple[Sequence[Any], ...]:
        return self.keys, self.units, self.befores, self.said

    def _row(self, *values: Any) -> Draft:
        *place, said = values
        return Draft(*place, *said)


class Change(NamedTuple):
    """One guarded write: the unit goes from `before` to `after`, or stays as it is."""

    unit: str
    keys: tuple[ItemKey, ...]
    before: Image
    after: Image


class OutcomeKind(StrEnum):
    """What became of one planned item."""

    CHANGED = "changed"
    CONFLICTED = "conflicted"
    FAILED = "failed"
    INDETERMINATE = "indeterminate"


class Outcome(NamedTuple):
    kind: OutcomeKind
    detail: str = ""


CHANGED = Outcome(OutcomeKind.CHANGED)


@dataclass(frozen=True, slots=True)
class Abilities:
    """What a backend's writes can do, said before anything is confirmed."""

    actions: frozenset[Action]
    budgets: frozenset[Budget]
    undo: UndoKind
    stores_due_time: bool
    """A release over time is written into the rows; otherwise the override paces itself."""
    guard: tuple[str, ...]
    """The columns of the before-image that guard a write."""
    guard_is_weak: bool = False
    """No guard column changes on every transition, so a change and back would not be noticed."""
    flags: frozenset[Flag] = frozenset()
    """What an operator may insist on here; any other flag changes nothing."""


@runtime_checkable
class Requeues(Backend, Protocol):
    """A backend that hands items back. `core.operations` is the only caller."""

    abilities: Abilities

    def drafts(
        self, wanted: Sequence[ItemKey] | Filter, sort: Sort, order: Order, now: datetime, stop: Stop
    ) -> Iterator[Sequence[Draft]]:
        """Everything selected, blocked or not, each once: of a filter in sort order, of keys in any order. Items of
        one unit come together, where the first of them is. Here a filter may have `signature:` terms
        (`Term.matches_signature`). A budget outside the abilities blocks them all. A batch may be a list, or `Drafts`
        where there are many."""

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        """The after-image of a change whose `after` is not yet known. Pure: `at` is the stored clock, no now().
        `console.core.changes.RequeuesMany` is for whoever makes those of many at once.
        Undoing what can only be compensated, `after` is what was there before it was changed to `before`."""

    def swap(self, changes: Sequence[Change], order: Order, authority: Authority) -> Sequence[Outcome]:
        """Compare-and-set every change in one transaction of the backend; one outcome each, in order.

        Core gives `console.core.changes.Changes`, whose columns are there for whoever writes many.
        A unit that is not exactly as `before` says is conflicted and untouched. A unit whose own write
        raises is failed, and the others go through. If the whole write cannot be known to have happened
        (connection lost at commit), raise a BackendFault: the caller settles it by re-reading.
        """

    def images(self, changes: Sequence[Change]) -> Sequence[Image | None]:
        """The same units as they are now, for settling; None where the unit is gone.

        A backend whose write is several steps first finishes, or takes back, what a crash left between two
        of them, unless it was opened read-only: each unit is then as `before` or as `after` says.
        """


@runtime_checkable
class RunsEngine(Backend, Protocol):
    """A backend that comes with its system's own loop (`retriage run`)."""

    handler: str | None
    """`package.module:function` from its config, for `retriage run` to import and pass on."""

    def run(self, handler: Callable[..., object], clock: Clock, stop: Stop, log: Callable[[str], None]) -> int:
        """Work until `stop`; returns how many executions there were."""
