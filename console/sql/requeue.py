"""Plans and after-images for a declared queue table.

A plan may have a million items. So the rows of a batch are handled column by column where that is quicker, and rows
that failed alike are judged once. What comes out are plain drafts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import product, repeat
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from console.core.action_rules import ATTEMPTS_STAY, NOT_STORABLE, TOO_LARGE, Decision, not_taken
from console.core.advice import Notice
from console.core.backend import Action, Attempts, Change, Draft, Image, Operation
from console.core.item import ItemKey, Verdict
from console.core.policy import Facts, RetryPolicy
from console.core.signature import signature_of
from console.sql.database import Row
from console.sql.layout import Expression
from console.sql.table import Assigned, Compute, QueueTable, RequeueRule, StoredRow, StoredTime
from console.sql.table_rows import TableRows
from console.sql.times import IsoText, TimeStyle
from console.sql.values import is_too_large, is_unicode, own_key, plain, storable, text

_REMEMBERED = 10_000
"""How many different failures are remembered while one plan is made."""
_PLAIN_KEYS = re.compile(r"[A-Za-z0-9_.~-]*").fullmatch

Summary = tuple[str, str | None, Notice | None, Notice | None]
"""The fields of a draft that many items share: condition, signature, skipped, warning."""
_Judge = Callable[[Mapping[str, Row]], list[Summary]]


class DraftColumns:
    """The columns that drafts are made from, each read once.

    An item's own values, which a plan keeps and compares, are never cut. If one is too large, NULL is read instead.
    """

    def __init__(
        self, facts: Mapping[str, Expression], image: Sequence[Expression], too_large: Expression, address: Expression
    ) -> None:
        self._facts = list(facts)
        wanted = [*facts.values(), *image, too_large, address]
        self.expressions = tuple({id(column): column for column in wanted}.values())
        position = {id(column): n for n, column in enumerate(self.expressions)}
        self._positions = [position[id(column)] for column in wanted]

    def split(self, rows: Sequence[Row]) -> tuple[dict[str, Row], list[Row], Row, Row]:
        """The values of the facts by name, of each image column, whether they are too large, and the addresses."""
        columns = list(zip(*rows, strict=True))
        *values, too_large, addresses = [columns[n] for n in self._positions]
        count = len(self._facts)
        return dict(zip(self._facts, values, strict=False)), values[count:], too_large, addresses


class RequeuePlanner:
    """Makes drafts and after-images by a table's rules for requeue and discard."""

    def __init__(
        self, name: str, table: QueueTable, rule: RequeueRule, policy: RetryPolicy, time: TimeStyle, rows: TableRows
    ) -> None:
        self._name = name
        self._table = table
        self._rule = rule
        self._policy = policy
        self._rows = rows
        self._encode: Callable[[datetime], Any] = time.encode
        if not isinstance(time, IsoText):
            self._encode = lambda instant: plain(time.encode(instant))
        self._last_at: tuple[datetime | None, Any] = (None, None)
        """The time of the last write and how it is stored: a whole chunk has the same."""
        self._assignments: dict[tuple[str, Attempts], _Assignments] = {
            (action, attempts): _Assignments(table.image, table.writes(action, attempts))
            for action, attempts in product(Action, Attempts)
        }

    # -- drafts ------------------------------------------------------------------------------------

    def columns(self, row: StoredRow, address: Expression, *, sqlite: bool) -> DraftColumns:
        """What has to be read of each row."""
        stored = self._table.table.c
        too_large = {name: is_too_large(stored[name]) for name in self._table.image}
        own = {name: sa.case((large, sa.null()), else_=stored[name]) for name, large in too_large.items()}
        declared = {name: getattr(self._table, name) for name in self._rows.judged_columns}
        facts: dict[str, Expression] = {
            name: own[column] if isinstance(column, str) and column in own else getattr(row, name)
            for name, column in declared.items()
        }
        if sqlite:
            facts["key"] = own_key(row.key)
        any_large = sa.or_(sa.false(), *too_large.values(), is_too_large(row.key))
        return DraftColumns(facts, list(own.values()), any_large, address)

    def drafts(
        self, columns: DraftColumns, batches: Iterable[Sequence[Row]], operation: Operation, now: datetime
    ) -> Iterator[list[Draft]]:
        judge = self._judge(operation, now)
        for rows in batches:
            yield self._drafts(*columns.split(rows), judge) if rows else []

    def _drafts(
        self, facts: Mapping[str, Row], images: Sequence[Row], too_large: Row, addresses: Row, judge: _Judge
    ) -> list[Draft]:
        ids = facts["key"]
        units = [""] * len(ids) if addresses[0] is None else list(map(str, addresses))
        fields = zip(self._keys(ids), units, zip(*images, strict=True), *zip(*judge(facts), strict=True), strict=True)
        # The quick way to make many named tuples of one kind.
        drafts = list(map(tuple.__new__, repeat(Draft), fields))
        if not self._all_storable(ids, images):
            drafts = [self._storable(id, draft) for id, draft in zip(ids, drafts, strict=True)]
        if not any(too_large):
            return drafts
        return [_skipped(draft, TOO_LARGE) if large else draft for draft, large in zip(drafts, too_large, strict=True)]

    def _storable(self, id: Any, draft: Draft) -> Draft:
        """A draft whose image a plan can keep, or one that is skipped."""
        before = tuple(map(plain, draft.before or ()))
        if storable(before) and self._can_be_bound(id):
            return draft._replace(before=before)
        return _skipped(draft, NOT_STORABLE)

    def _keys(self, ids: Sequence[Any]) -> list[str]:
        if set(map(type, ids)) == {str} and _PLAIN_KEYS("".join(ids)):
            return [f"{self._name}/{id}" for id in ids]
        return [str(ItemKey(self._name, (text(id),))) for id in ids]

    def _all_storable(self, ids: Sequence[Any], images: Sequence[Sequence[Any]]) -> bool:
        """Whether a plan can keep all of these values unchanged, found by one check of all of them."""
        if set(map(type, ids)) != {int if self._table.integer_key else str}:
            return False
        return all(map(_is_plain, (ids, *images)))

    def _can_be_bound(self, id: Any) -> bool:
        """Whether a write finds the row by its key again; SQLite may hold another type than the column's."""
        if self._table.integer_key:
            return type(id) is int
        return is_unicode(id) if isinstance(id, str) else isinstance(id, UUID)

    def _judge(self, operation: Operation, now: datetime) -> _Judge:
        """Judges rows given by column; those that failed alike are judged once, unless the clock counts."""
        rule = self._table.rule(Action(operation.action))
        assert rule is not None, "its abilities do not have this action"

        def judged(row: StoredRow) -> Summary:
            facts, verdict = self._rows.judged(row, now)
            if isinstance(rule, RequeueRule):
                decision = self._decide_requeue(row, facts, verdict, operation, now)
            else:
                decision = rule.decision(facts, verdict, operation, self._policy, now)
            return verdict.condition.value, signature_of(facts.error) if facts.error else None, *decision

        @lru_cache(maxsize=_REMEMBERED)
        def judged_alike(status: Any, attempts: Any, max_attempts: Any, error: Any, type: Any) -> Summary:
            row = StoredRow(status=status, attempts=attempts, max_attempts=max_attempts, error=error, type=type)
            return judged(row)

        def judge(facts: Mapping[str, Row]) -> list[Summary]:
            if all(map(self._rows.is_timeless, set(facts["status"]))):
                limits, types = (facts.get(name) or repeat(None) for name in ("max_attempts", "type"))
                return list(map(judged_alike, facts["status"], facts["attempts"], limits, facts["error"], types))
            values = zip(*facts.values(), strict=True)
            return [judged(StoredRow(**dict(zip(facts, row, strict=True)))) for row in values]

        return judge

    def _decide_requeue(
        self, row: StoredRow, facts: Facts, verdict: Verdict, operation: Operation, now: datetime
    ) -> Decision:
        if operation.attempts not in self._rule.attempts:
            return Decision(ATTEMPTS_STAY)
        decision = self._rule.decide(facts, verdict, operation, self._policy, now)
        if decision.skipped is None and not (predicted := self._rows.once_ready(row)).runs:
            return Decision(not_taken(predicted))
        return decision

    # -- after-images ------------------------------------------------------------------------------

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        last, now = self._last_at
        if last is not at:
            now = self._encode(at)
            self._last_at = at, now
        when = now if due is at else self._encode(due)
        return self._assignments[operation.action, operation.attempts].image(change.before, now, when)


class _Assignments:
    """What an action writes, by position in an image."""

    def __init__(self, columns: Sequence[str], assigns: Mapping[str, Assigned]) -> None:
        found = [(n, assigns[name]) for n, name in enumerate(columns) if name in assigns]
        self._now = [n for n, assigned in found if assigned is StoredTime.NOW]
        self._due = [n for n, assigned in found if assigned is StoredTime.DUE]
        self._computed: list[tuple[int, Compute]] = [(n, assigned) for n, assigned in found if callable(assigned)]
        others = {*self._now, *self._due, *(n for n, _ in self._computed)}
        self._values = [(n, assigned) for n, assigned in found if n not in others]

    def image(self, before: Image, now: Any, due: Any) -> Image:
        after = list(before)
        for n in self._now:
            after[n] = now
        for n in self._due:
            after[n] = due
        for n, value in self._values:
            after[n] = value
        for n, compute in self._computed:
            after[n] = compute(before[n], due)
        return tuple(after)


def _skipped(draft: Draft, why: Notice) -> Draft:
    return draft._replace(unit="", before=None, skipped=why, warning=None)


def _is_plain(column: Sequence[Any]) -> bool:
    """Whether all values are ASCII text, whole numbers or None."""
    kinds = set(map(type, column))
    if not kinds <= {str, int, type(None)}:
        return False
    return str not in kinds or "".join([value for value in column if type(value) is str]).isascii()
