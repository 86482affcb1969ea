"""Handing items back by what the mapping says their system does: what may be done, what it makes of a row, why not.

An image is the guard's columns and then the columns that are set, in the order of the mapping, as JSON values.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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
from console.sql.times import zone_named
from console.sql.values import plain, storable
from plugins.sql_table.attaching import Attached
from plugins.sql_table.fragments import formula
from plugins.sql_table.handing_back import Assigned, Effect, Requeue
from plugins.sql_table.mapping import Source, TableMapping
from plugins.sql_table.reading import Reading, bound
from plugins.sql_table.rows import WIDTH
from plugins.sql_table.stored_times import TimeKind, kind_of
from plugins.sql_table.tables import Column

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
_PAYLOADS = frozenset({"json", "jsonb", "bytea", "xml"})
_WORD = re.compile(r"\w+")
_OLD_WORKER = "ran longer than its limit: the old worker may still be alive"
_STRANGE = "holds a value that is not text, a number or a time, so a write could not be guarded"


@dataclass(frozen=True, slots=True)
class Part:
    """One value of the image: how it is read, and how it is written where a requeue sets it."""

    name: str
    column: str
    stored: Column
    read: str | None = None
    """An expression instead of the column."""
    write: str | None = None
    time: TimeKind | None = None
    is_set: bool = True


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
        assert attached.mapping.requeue is not None
        self._requeue = attached.mapping.requeue
        self._attached = attached
        self._reading = reading
        self._policy = policy
        self._rules = Rules(self._requeue, policy)
        self.parts = self._image_parts()
        self._reads = self._all_reads()
        self._refusal = self._refused()

    # -- the image -------------------------------------------------------------------------------

    def _image_parts(self) -> tuple[Part, ...]:
        requeue, found = self._requeue, {}
        for n, name in enumerate(requeue.guard):
            found[name] = self._part(name, None, "requeue", "guard", n)
        for loc, assigned in assignments(requeue):
            found[loc[-1]] = self._part(loc[-1], assigned, *loc)
        return tuple(found.values())

    def _part(self, name: str, assigned: Assigned | None, *loc: str | int) -> Part:
        column = name if assigned is None or assigned.column is None else assigned.column
        if assigned is not None and assigned.read is not None:
            found = self._attached.expression(assigned.read, *loc, "read")
            stored = self._attached.column(column, *loc).column
            return Part(name, column, found.column if found.type else stored, assigned.read, assigned.write)
        found = self._attached.column(column, *loc)
        by_update = self._requeue.function is None and not self._requeue.statements
        if by_update and column not in self._attached.table.columns:
            raise self._attached.wrong(f"{column!r} is not a column of {self._attached.table.shown!r} itself", *loc)
        if assigned is not None and by_update and found.column.generated:
            raise self._attached.wrong(f"{column!r} is generated by the database and cannot be set", *loc)
        self._require_no_evidence(column, found.column, *loc)
        if assigned is not None and "value" in assigned.model_fields_set and by_update:
            self._attached.require_fit(assigned.value, found.column, *loc)
        time = self._time_kind(name, found.column, assigned, *loc)
        return Part(name, column, found.column, time=time, is_set=assigned is not None)

    def _require_no_evidence(self, column: str, stored: Column, *loc: str | int) -> None:
        """What guards or is set goes on record; error texts and payloads never do."""
        error = self._attached.mapping.error
        what = "an error text" if error is not None and error.column == column else None
        if what is None and stored.type.removesuffix("[]") in _PAYLOADS:
            what = "a payload"
        if what is not None:
            fix = "Name a part of it with read and write, which say what is compared and how it is set."
            raise self._attached.wrong(f"{column!r} would put {what} on record", *loc, fix=fix)

    def _time_kind(
        self, name: str, column: Column, assigned: Assigned | None, *loc: str | int
    ) -> TimeKind | None:
        """How the column stores times, where it holds one."""
        mapping, known = self._attached.mapping, self._reading.times
        source = next((p for p in known.kinds if getattr(mapping, p).column == name), None)
        if source is not None and column.precision is None:
            return known.kinds[source]
        is_time = assigned is not None and assigned.time is not None
        if not is_time and (self._attached.sqlite or not column.type.startswith("timestamp")):
            return None
        zone = zone_named(mapping.time_zone)
        try:
            return kind_of(column.type, mapping.times, zone, sqlite=self._attached.sqlite, precision=column.precision)
        except ValueError as problem:
            raise self._attached.wrong(str(problem), *loc) from None

    def _all_reads(self) -> tuple[Expression, ...]:
        """The image of a row as it is now."""
        return tuple(
            self._attached.column(part.column).expression if part.read is None
            else self._attached.expression(part.read).expression
            for part in self.parts
        )

    # -- drafts ----------------------------------------------------------------------------------

    def columns(self) -> tuple[Expression, ...]:
        """What a draft needs: everything a verdict is made of, where the row is, its image, and why not."""
        main = self._attached.main
        if self._attached.sqlite:
            place = main.c.rowid if self._attached.table.is_table else sa.null()
        else:
            place = sa.cast(main.c.ctid, sa.Text) if self._attached.table.is_table else sa.null()
        return (place, self._refusal, *self._reads)

    def _refused(self) -> Expression:
        cases = [
            (self._attached.predicate(rule.when, "requeue", "blocked", n, "when"), bound(rule.why))
            for n, rule in enumerate(self._requeue.blocked)
        ]
        return sa.cast(sa.case(*cases), sa.Text) if cases else sa.null()

    def drafts(self, rows: Sequence[Row], order: Order, now: datetime) -> list[Draft]:
        read, first = self._reading.rows, len(self._reading.keys) + WIDTH
        last = first + 2 + len(self.parts)
        drafts = []
        for row in rows:
            key, native = read.key(row), read.native(row)
            facts = read.facts(native)
            verdict = judge(facts, self._policy, now)
            place, refused, *image = row[first:last]
            blocked, warning = self._rules.decide(facts, verdict, order, now, refused)
            before = [plain(value) for value in image]
            if not storable(before) or not storable(row[: len(self._reading.keys)] if self._attached.sqlite else ()):
                drafts.append(Draft(str(key), "", "null", verdict.condition, None, blocked or _STRANGE))
                continue
            unit = "" if place is None else str(place) if self._attached.sqlite else f"{key.id}@{place}"
            signature = signature_of(facts.error) if facts.error else None
            drafts.append(Draft(str(key), unit, image_text(before), verdict.condition, signature, blocked, warning))
        return drafts

    # -- after-images ----------------------------------------------------------------------------

    def after(self, change: Change, order: Order, at: datetime, due: datetime) -> Image:
        """The image once it is handed back: what is set, computed from what was there."""
        effect = self._rules.effect(order.budget)
        assigned = {**self._requeue.set, **(effect.set if effect else {})}
        before = {part.name: value for part, value in zip(self.parts, change.before, strict=True)}
        return tuple(
            self._becomes(part, assigned[part.name], before, at, due) if part.name in assigned else before[part.name]
            for part in self.parts
        )

    def _becomes(
        self, part: Part, assigned: Assigned, before: Mapping[str, Any], at: datetime, due: datetime
    ) -> Any:
        if assigned.formula is not None:
            return formula(assigned.formula).value(before)
        if assigned.time is not None:
            assert part.time is not None
            return plain(part.time.encode(at if assigned.time == "now" else due, before[part.name]))
        if isinstance(assigned.value, bool) and self._attached.sqlite:
            return int(assigned.value)
        return assigned.value


# --- what is known before anything is attached ------------------------------------------------------------------


def assignments(requeue: Requeue) -> list[tuple[tuple[str, ...], Assigned]]:
    """Everything that is set, and where in the mapping it says so."""
    listed: list[tuple[tuple[str, ...], Assigned]] = [
        (("requeue", "set", name), assigned) for name, assigned in requeue.set.items()
    ]
    for budget, rule in (("keep", requeue.budgets.keep), ("fresh", requeue.budgets.fresh)):
        if rule is not None:
            listed += [(("requeue", "budgets", budget, "set", name), one) for name, one in rule.set.items()]
    return listed


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
