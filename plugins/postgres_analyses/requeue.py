"""Handing analyses back by their own loop's rules: what may be done, what it makes of a row, and why not."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import repeat
from json.encoder import encode_basestring_ascii
from typing import Any

from console.core.backend import (
    Abilities,
    Action,
    Budget,
    Change,
    Drafts,
    Flag,
    Image,
    Order,
    Said,
    UndoKind,
    image_text,
)
from console.core.changes import Changes
from console.core.item import Condition, ItemKey
from console.core.policy import RetryPolicy
from console.core.signature import signature_of, signatures_of
from console.core.text import duration
from console.sql.database import Row
from console.sql.guarded import Target
from console.sql.times import IsoText, Naive
from console.sql.values import plain, storable, text
from plugins.postgres_analyses.rows import AnalysisRows, Native
from plugins.postgres_analyses.rules import Rules

PER_CYCLE, CYCLE = 10, timedelta(seconds=60)
"""The loop takes so many rows of each pipeline, every so often."""

_Decided = tuple[str, bool, str | None, tuple[str, ...]]
"""Condition, whether it is set pending by force, why it is blocked, what to be warned of."""
_Shared = tuple[str, str, str | None, tuple[str, ...]]
"""How the keys end and the images begin of rows that are alike, why they are blocked, what to be warned of."""
_STRANGE = "holds a value that is not text, so a write could not be guarded"
_STEPS = tuple(timedelta(minutes=n) for n in (1, 2, 5, 10, 30, 60, 120, 360, 1440))
_TAKEN_WITHIN = [step // CYCLE * PER_CYCLE for step in _STEPS]
"""How many of a pipeline the loop takes in each of them; what it takes in the first is no wait."""
_TIMES_OR_NONE = {datetime, type(None)}
_ALIKE = 10_000
"""About so many different kinds of rows are remembered while a plan is drafted."""


def abilities(pipelines: Sequence[str]) -> Abilities:
    return Abilities(
        actions=frozenset({Action.REQUEUE, Action.UNDO}),
        budgets=frozenset(Budget),
        undo=UndoKind.EXACT,
        stores_due_time=False,
        guard=(*(f"{pipeline}_status" for pipeline in pipelines), "retry_count", "last_retry_at"),
        flags=frozenset({Flag.ALLOW_UNRECOVERABLE}),
    )


class Requeue:
    """The drafts and after-images of one table."""

    def __init__(
        self, backend: str, table: str, pipelines: tuple[str, ...], policy: RetryPolicy,
        time: Naive | IsoText, rows: AnalysisRows, *, sqlite: bool,
    ) -> None:
        self._backend = backend
        self._pipelines = pipelines
        self.width = len(pipelines)
        self.rows = rows
        self.rules = Rules(policy, time)
        self.policy = policy
        self._sqlite = sqlite
        self.start = f"{backend}/"
        self.endings = {pipeline: f"/{ItemKey(backend, (pipeline,)).id}" for pipeline in pipelines}
        self.target = Target(table, "id", abilities(pipelines).guard, integer_key=True, key_parts=2)

    def drafts(
        self, batches: Iterable[Sequence[Row]], order: Order, now: datetime, *, neighbours: bool
    ) -> Iterator[Drafts]:
        """Drafts with both pipelines of a row together; `neighbours` says that they come in that way."""
        drafting = Drafting(self, order, now)
        held: dict[object, list[Native]] = {}
        for batch in batches:
            found = self._all_single(batch, held) if neighbours else None
            alike = drafting.alike(found) if found else None
            if alike is not None:
                if held:
                    yield drafting.drafts(list(held.values()))
                yield alike
                held = {batch[-1][0]: [self.rows.native(batch[-1])]}
                continue
            for row in map(self.rows.native, batch):
                held.setdefault(row.id, []).append(row)
            if neighbours and len(held) > 1:
                id, last = held.popitem()
                yield drafting.drafts(list(held.values()))
                held = {id: last}
        if held:
            yield drafting.drafts(list(held.values()))

    def _all_single(self, batch: Sequence[Row], held: dict[object, list[Native]]) -> Sequence[Row] | None:
        """All but the last row, which may go on in the next batch, if each of them is all there is of its unit."""
        ids = {row[0] for row in batch}
        return batch[:-1] if len(ids) == len(batch) and ids.isdisjoint(held) else None

    def unit(self, row: Native) -> str:
        return self.plain_unit(row.id, row.place)

    def plain_unit(self, id: Any, place: Any) -> str:
        return str(place) if self._sqlite else f"{id}@{place}"

    def key(self, row: Native) -> str:
        if type(row.id) is int:
            return self.plain_key(row.id, row.pipeline)
        return str(ItemKey(self._backend, (text(row.id), row.pipeline)))

    def plain_key(self, id: int, pipeline: str) -> str:
        return f"{self.start}{id}{self.endings[pipeline]}"

    def after(self, change: Change, order: Order) -> Image:
        """The loop takes it at its next cycle: no last retry, and a counter that leaves room."""
        *statuses, retries, _last, forced = change.before
        assert len(statuses) == self.width
        if not forced:
            return (*statuses, 0 if order.budget is Budget.FRESH else retries, None, forced)
        asked = {key.parts[1] for key in change.keys} & set(forced.split(","))
        after = ["pending" if p in asked else s for p, s in zip(self._pipelines, statuses, strict=True)]
        fresh = order.budget is Budget.FRESH or bool(asked)
        return (*after, 0 if fresh else retries, None, forced)


    def afters(self, changes: Changes, order: Order) -> Sequence[Image]:
        """`after` of each, column by column where none is set pending by force."""
        if not changes:
            return []
        *statuses, retries, _, forced = zip(*changes.befores, strict=True)
        if any(forced):
            return [self.after(change, order) for change in changes]
        left = repeat(0, len(changes)) if order.budget is Budget.FRESH else retries
        return list(zip(*statuses, left, repeat(None, len(changes)), forced, strict=True))


class Drafting:
    """The drafts of one plan: what was found out about rows that are alike, and how many the loop has before it."""

    def __init__(self, requeue: Requeue, order: Order, now: datetime) -> None:
        self._requeue = requeue
        self._order = order
        self._now = now
        self._turn = requeue.rules.turning_point(now)
        self._hopeless = requeue.policy.hopeless
        self._given_up: dict[Row, _Decided] = {}
        self._heads: dict[Row, str | None] = {}
        self._taken: dict[str, int] = {}

    def drafts(self, units: list[list[Native]]) -> Drafts:
        keys, places, befores = [], [], []
        said: list[Said] = []
        key_of, unit_of, decided_of, before_of = self._requeue.key, self._requeue.unit, self._decided, self._before
        for rows in units:
            decided = list(map(decided_of, rows))
            forced = [row.pipeline for row, one in zip(rows, decided, strict=True) if one[1]]
            before = before_of(rows[0], ",".join(forced))
            place = unit_of(rows[0]) if before is not None else ""
            for row, (condition, _, blocked, warnings) in zip(rows, decided, strict=True):
                keys.append(key_of(row))
                places.append(place)
                befores.append("null" if before is None else before)
                signature = signature_of(text(row.error)) if row.error else None
                if before is None:
                    said.append((condition, signature, _STRANGE, None))
                    continue
                warning = self._warning(row[1], warnings) if blocked is None else None
                said.append((condition, signature, blocked, warning))
        return Drafts(keys, places, befores, said)

    def alike(self, rows: Sequence[Row]) -> Drafts | None:
        """Column by column, because a plan may have a million of them; None where some row is not as most are: one
        item that its loop has given up, for an error it would take again."""
        if (turn := self._turn) is None:
            return None
        ids, pipelines, errors, retries, lasts, begun, _, places, *rest = zip(*rows, strict=True)
        statuses = rest[: self._requeue.width]
        given_up = self._requeue.rows.own_statuses(pipelines, statuses) == {"failed"}
        usual = given_up and all(map(_of_one_kind, (ids, errors, begun), (int, str, datetime)))
        if not usual or begun[0].tzinfo is not None or not set(map(type, lasts)) <= _TIMES_OR_NONE:
            return None
        if self._hopeless("\n".join(errors)) is not None:
            return None
        kinds = self._kinds((pipelines, *statuses, retries), lasts, begun, turn)
        known = {kind: self._shared(row) for kind, row in dict(zip(kinds, rows, strict=True)).items()}
        if None in known.values():
            return None
        endings, heads, blocked, warnings = zip(*map(known.__getitem__, kinds), strict=True)
        start, signatures = self._requeue.start, signatures_of(errors)
        whens = ["null" if last is None else f'"{last.isoformat()}"' for last in lasts]
        return Drafts(
            [f"{start}{id}{ending}" for id, ending in zip(ids, endings, strict=True)],
            list(map(self._requeue.plain_unit, ids, places)),
            [f'{head},{when},""]' for head, when in zip(heads, whens, strict=True)],
            list(zip(repeat(Condition.TERMINAL), signatures, blocked, self._warned(pipelines, blocked, warnings))),
        )
    def _kinds(self, own: Sequence[Row], lasts: Row, begun: Row, turn: datetime) -> list[Row]:
        """What the decision on each row depends on, and what is said of it beside its own error and times."""
        count = len(lasts)
        never = [last is None for last in lasts] if None in lasts else repeat(False, count)
        late = [at > turn for at in begun] if max(begun) > turn else repeat(False, count)
        return list(zip(*own, never, late, strict=True))

    def _shared(self, row: Row) -> _Shared | None:
        """What rows of one kind have in common; None where they were not given up, or cannot be kept in a plan."""
        native = self._requeue.rows.native(row)
        condition, _, blocked, warnings = self._decided(native)
        head = self._head(native.statuses, native.retry_count)
        if head is None or condition is not Condition.TERMINAL:
            return None
        return self._requeue.endings[native.pipeline], head, blocked, warnings

    def _warned(self, pipelines: Row, blocked: Row, warnings: Row) -> Iterable[str | None]:
        """`_warning` of each; at once where none of a pipeline comes to a new step of the wait."""
        if set(blocked) == {None}:
            taken = {pipeline: self._taken.get(pipeline, 0) for pipeline in set(pipelines)}
            grown = {pipeline: before + pipelines.count(pipeline) for pipeline, before in taken.items()}
            steps = {pipeline: bisect_left(_TAKEN_WITHIN, before + 1) for pipeline, before in taken.items()}
            if all(bisect_left(_TAKEN_WITHIN, grown[pipeline]) == step for pipeline, step in steps.items()):
                self._taken.update(grown)
                return map(_told, warnings, map(steps.__getitem__, pipelines))
        shared = zip(pipelines, blocked, warnings, strict=True)
        return [self._warning(pipeline, these) if why is None else None for pipeline, why, these in shared]

    def _warning(self, pipeline: str, warnings: tuple[str, ...]) -> str | None:
        """What is warned of, and how long the loop will need to get to this item, in coarse steps."""
        position = self._taken.get(pipeline, 0) + 1
        self._taken[pipeline] = position
        return _told(warnings, bisect_left(_TAKEN_WITHIN, position))

    def _decided(self, row: Native) -> _Decided:
        """What was given up alike is decided once."""
        kind = self._kind(row)
        if kind is not None and (known := self._given_up.get(kind)):
            return known
        found = self._requeue.rows
        verdict = found.judged(row, found.times(row), self._now)[2]
        blocked, warnings = self._requeue.rules.decide(row, verdict, self._order, self._now)
        given_up = verdict.condition is Condition.TERMINAL
        force = blocked is None and given_up and verdict.recoverable is False
        decided = verdict.condition, force, blocked, warnings
        if kind is not None and given_up:
            if len(self._given_up) > _ALIKE:
                self._given_up.clear()
            self._given_up[kind] = decided
        return decided

    def _kind(self, row: Native) -> Row | None:
        """What the decision on a row that was given up depends on; None where it depends on more."""
        _, _, status, error, retries, last, processed, _, _, statuses = row
        usual = type(processed) is datetime and processed.tzinfo is None and type(error) is str
        if self._turn is None or not usual or status != "failed" or self._hopeless(error) is not None:
            return None
        return (statuses, retries, last is None, processed > self._turn)

    def _before(self, row: Native, forced: str) -> str | None:
        """The image of a row as JSON; None where it holds something a plan cannot keep."""
        last = row.last_retry_at
        if not (last is None or type(last) is datetime):
            image = (*row.statuses, row.retry_count, plain(last), forced)
            return image_text(image) if storable(image) else None
        head = self._head(row.statuses, row.retry_count)
        if head is None:
            return None
        when = "null" if last is None else f'"{last.isoformat()}"'
        return f"{head},{when},{encode_basestring_ascii(forced)}]"

    def _head(self, statuses: Row, retries: Any) -> str | None:
        """How an image begins: what many rows share."""
        same = (statuses, retries)
        if same not in self._heads:
            if len(self._heads) > _ALIKE:
                self._heads.clear()
            image = (*statuses, retries)
            self._heads[same] = image_text(image)[:-1] if storable(image) else None
        return self._heads[same]


def _of_one_kind(values: Sequence[object], kind: type) -> bool:
    return set(map(type, values)) == {kind}


@lru_cache(maxsize=1024)
def _told(warnings: tuple[str, ...], step: int) -> str | None:
    pace = f"its own loop takes {PER_CYCLE} per pipeline every {duration(CYCLE)}"
    if step >= len(_STEPS):
        return "; ".join([*warnings, f"{pace}: taken after more than {duration(_STEPS[-1])}"])
    return "; ".join([*warnings, *([f"{pace}: taken within {duration(_STEPS[step])}"] if step else [])]) or None
