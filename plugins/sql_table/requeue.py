"""Handing items back by what the mapping says their system does: what may be done, what it makes of a row, why not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from console.core.backend import (
    Abilities,
    Action,
    Budget,
    Change,
    Draft,
    Flag,
    Image,
    Order,
    UndoKind,
    image_text,
)
from console.core.item import Condition, Verdict
from console.core.policy import Facts, RetryPolicy, judge, limit_of
from console.core.signature import signature_of
from console.sql.database import Row
from console.sql.layout import Expression
from console.sql.values import plain, storable
from plugins.sql_table.attaching import Attached
from plugins.sql_table.handing_back import Effect, Requeue
from plugins.sql_table.image import RowImage, assignments
from plugins.sql_table.mapping import Source, TableMapping
from plugins.sql_table.reading import Reading
from plugins.sql_table.rows import WIDTH, Native
from plugins.sql_table.statuses import bound

_BLOCKED = {
    Condition.WAITING: "has not failed: it waits for its first run",
    Condition.RUNNING: "is running within its limit",
    Condition.DONE: "is done",
    Condition.CANCELLED: "was cancelled",
    Condition.UNKNOWN: "has a native status the mapping has no rule for",
}
_NOT_BY_ITS_RULES = {
    Condition.STUCK: "is stuck: the mapping knows no safe way to take it from its worker",
    Condition.RETRYING: "is being retried: its own system takes it when it is due",
    Condition.FAILED: "has failed: the mapping hands back other conditions only",
    Condition.TERMINAL: "is terminal: the mapping hands back other conditions only",
}
_EFFECTS = {
    "headroom": "max attempts is raised by one: one more try, then terminal again",
    "plus_one": "the requeue itself counts as one attempt",
    "last_try": "the counter is kept: dies after one more try",
    "reset": "the counter starts again: the whole schedule again",
}
_ALIKE = 10_000
"""So many different verdicts are remembered while one batch is drafted."""
_Judged = tuple[Condition, str | None, str | None, str | None]
_WORD = re.compile(r"\w+")
_OLD_WORKER = "ran longer than its limit: the old worker may still be alive"
_STRANGE = "holds a value that is not text, a number or a time, so a write could not be guarded"
_LOOSE_KEY = "its key is not of the type its column says, so a write could not find it"
_TOO_LARGE = "holds a number so large that what would be set is too large to write"


class Rules:
    """Whether and how a row may be handed back, decided before anything is written."""

    def __init__(self, requeue: Requeue, policy: RetryPolicy) -> None:
        self._requeue = requeue
        self._policy = policy
        self._allowed = {Condition(name) for name in requeue.conditions}
        self._effects = {Budget.KEEP: requeue.budgets.keep, Budget.FRESH: requeue.budgets.fresh}

    def effect(self, budget: Budget) -> Effect | None:
        return self._effects[budget]

    def decide(
        self, facts: Facts, verdict: Verdict, order: Order, now: datetime, refused: str | None
    ) -> tuple[str | None, str | None]:
        """Why it is blocked, if it is, and what to be warned of otherwise."""
        if blocked := _BLOCKED.get(verdict.condition) or self._otherwise(verdict) or refused:
            return blocked, None
        effect = self._effects[order.budget]
        if effect is None:
            return self._no_such_budget(order.budget), None
        if verdict.condition is Condition.RETRYING and (blocked := self._pull_forward(facts, order, now)):
            return blocked, None
        if verdict.recoverable is False and Flag.ALLOW_UNRECOVERABLE not in order.flags:
            return "its error is not recoverable; allow it with --allow-unrecoverable", None
        limit = limit_of(facts, self._policy)
        used_up = verdict.condition is Condition.TERMINAL if limit is None else facts.attempts >= limit
        is_stuck = verdict.condition is Condition.STUCK
        if is_stuck and used_up and effect.effect == "last_try":
            return f"{facts.attempts} of {limit} attempts used; use budget fresh", None
        warnings = [_OLD_WORKER] if is_stuck else []
        if effect.effect in ("reset", "plus_one") or used_up:
            warnings.append(_EFFECTS[effect.effect])
        return None, "; ".join(warnings) or None

    def _otherwise(self, verdict: Verdict) -> str | None:
        return None if verdict.condition in self._allowed else _NOT_BY_ITS_RULES.get(verdict.condition)

    def _no_such_budget(self, budget: Budget) -> str:
        if budget is Budget.KEEP:
            return "its own retry starts the counter again: use budget fresh"
        return "its own retry keeps the counter: use budget keep"

    def _pull_forward(self, facts: Facts, order: Order, now: datetime) -> str | None:
        if order.budget is not Budget.KEEP:
            return "is being retried: it can only be pulled forward, with budget keep"
        if facts.ignored is None and (facts.due_at is None or facts.due_at <= now):
            return "is already due: its own system takes it next"
        return None


class Handing:
    """The drafts and after-images of one mapping."""

    def __init__(self, attached: Attached, reading: Reading, policy: RetryPolicy) -> None:
        self.image = RowImage(attached, reading)
        self._attached = attached
        self._reading = reading
        self._policy = policy
        self._rules = Rules(self.image.requeue, policy)
        self._refusal = self._refused()

    # -- drafts ----------------------------------------------------------------------------------

    def columns(self) -> tuple[Expression, ...]:
        """What a draft needs: everything a verdict is made of, where the row is, its image, and why not."""
        main = self._attached.main
        if self._attached.sqlite:
            place = main.c.rowid if self._attached.table.is_table else sa.null()
        else:
            place = sa.cast(main.c.ctid, sa.Text) if self._attached.table.is_table else sa.null()
        return (place, self._refusal, *self.image.reads)

    def _refused(self) -> Expression:
        cases = [
            (self._attached.predicate(rule.when, "requeue", "blocked", n, "when"), bound(rule.why))
            for n, rule in enumerate(self.image.requeue.blocked)
        ]
        return sa.cast(sa.case(*cases), sa.Text) if cases else sa.null()

    def drafts(self, rows: Sequence[Row], order: Order, now: datetime) -> list[Draft]:
        """Rows of the same kind are judged once: a storm is many of them."""
        read, keys, sqlite = self._reading.rows, len(self._reading.keys), self._attached.sqlite
        first = keys + WIDTH
        last = first + 2 + len(self.image.parts)
        alike: dict[Row, _Judged] = {}
        drafts = []
        for row in rows:
            key, native = read.key(row), read.native(row)
            place, refused, *image = row[first:last]
            kind = self._timeless(native, refused)
            judged = alike.get(kind) if kind is not None else None
            if judged is None:
                judged = self._judged(native, refused, order, now)
                if kind is not None and len(alike) < _ALIKE:
                    alike[kind] = judged
            condition, signature, blocked, warning = judged
            before = [plain(value) for value in image]
            if not storable(before) or (sqlite and not storable(row[:keys])):
                drafts.append(Draft(str(key), "", "null", condition, signature, blocked or _STRANGE))
                continue
            if not blocked and sqlite and not self._reading.held_as_declared(row[:keys]):
                blocked, warning = _LOOSE_KEY, None
            if not blocked and not self.image.fits(before, order.budget):
                blocked, warning = _TOO_LARGE, None
            unit = "" if place is None else str(place) if sqlite else f"{key.id}@{place}"
            drafts.append(Draft(str(key), unit, image_text(before), condition, signature, blocked, warning))
        return drafts

    def _timeless(self, row: Native, refused: Any) -> Row | None:
        """What the verdict on a row that has failed depends on; None where it depends on the clock as well."""
        if self._policy.max_age is not None or self._reading.rows.meaning(row.status) not in ("failed", "terminal"):
            return None
        return (row.status, row.attempts, row.max_attempts, row.error, refused)

    def _judged(self, row: Native, refused: Any, order: Order, now: datetime) -> _Judged:
        facts = self._reading.rows.facts(row)
        verdict = judge(facts, self._policy, now)
        blocked, warning = self._rules.decide(facts, verdict, order, now, refused)
        return verdict.condition, signature_of(facts.error) if facts.error else None, blocked, warning

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        return self.image.after(change.before, order.budget, at, due)


# --- what is known before anything is attached ------------------------------------------------------------------


def abilities_of(mapping: TableMapping) -> Abilities:
    requeue = mapping.requeue
    if requeue is None:
        return Abilities(frozenset(), frozenset(), UndoKind.NONE, stores_due_time=False, guard=())
    set_here = assignments(requeue)
    exact = requeue.function is None and not requeue.statements
    guard = tuple(dict.fromkeys((*requeue.guard, *(loc[-1] for loc, _ in set_here))))
    changing = set(_columns(mapping.attempts)) | set(_columns(mapping.updated))
    return Abilities(
        actions=frozenset({Action.REQUEUE, Action.UNDO} if exact else {Action.REQUEUE}),
        budgets=frozenset(budget for budget in Budget if getattr(requeue.budgets, budget.value) is not None),
        undo=UndoKind.EXACT if exact else UndoKind.NONE,
        stores_due_time=any(assigned.time == "due" for _, assigned in set_here),
        guard=guard,
        guard_is_weak=not changing & {*guard, *(assigned.column for _, assigned in set_here)},
        flags=frozenset({Flag.ALLOW_UNRECOVERABLE}),
    )


def _columns(source: Source | None) -> list[str]:
    """The columns something is read from, as far as its words tell."""
    if source is None:
        return []
    return [source.column] if source.column is not None else _WORD.findall(source.expression or "")
