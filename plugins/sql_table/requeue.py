"""Requeues mapped items: which ones, what is written, and why others are skipped."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from console.core.advice import Advice, Notice, Step
from console.core.backend import (
    Abilities,
    Action,
    Attempts,
    Change,
    Draft,
    Flag,
    Image,
    Operation,
    UndoKind,
)
from console.core.item import Condition, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, limit_of
from console.core.prediction import Prediction
from console.core.requeue_rules import (
    ALREADY_DUE,
    ATTEMPTS_STAY,
    NO_ATTEMPTS_LEFT,
    NOT_REQUEUEABLE,
    NOT_STORABLE,
    OLD_WORKER,
    ONLY_EARLIER,
    UNRECOVERABLE,
    Decision,
)
from console.core.signature import signature_of
from console.sql.database import Row
from console.sql.layout import Expression
from console.sql.table import StoredRow, phase_of
from console.sql.values import plain, storable, text
from plugins.sql_table.image import RowImage, assignments
from plugins.sql_table.layout import MappedLayout
from plugins.sql_table.mapping import Source, TableMapping
from plugins.sql_table.prediction import predict
from plugins.sql_table.requeue_schema import RequeueSection
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.status_after import require_ready, status_after

_NOT_MAPPED = {
    Condition.STUCK: Notice("Stuck; the mapping names no safe way to take it from its worker."),
    Condition.RETRYING: ALREADY_DUE,
    Condition.FAILED: Notice("Failed; the mapping requeues other conditions only."),
    Condition.TERMINAL: Notice("Terminal; the mapping requeues other conditions only."),
}
_EFFECTS = {
    "headroom": "Max attempts is raised by one: one more try, then terminal again.",
    "plus_one": "The requeue itself counts as one attempt.",
    "last_try": "Attempts are kept: one more try, then terminal.",
    "reset": "Attempts start again: the whole schedule again.",
}
_LEFT = "Was given up with attempts left: it gets all of them, not one more try."
_ALWAYS_RESET = Notice("Its own retry always resets attempts.", Advice(Step.SET_ATTEMPTS, Attempts.RESET.value))
_REMEMBERED = 10_000
"""How many different failures are remembered while one batch is drafted."""
_WORD = re.compile(r"\w+")
_LOOSE_KEY = Notice("Its key is not of its column's type, so a write could not find it.")
_TOO_LARGE = Notice("Holds a number so large that the new value would be too large to write.")


class SelectedRow(NamedTuple):
    """The columns that a draft is made from."""

    key: Row
    stored: StoredRow
    address: Any
    """Where the database finds the row again."""
    skip_reason: str | None
    """From the mapping's skip rules."""
    warning: str | None
    """From the mapping's warn rules."""
    status_after: Any
    """The native status after the requeue; None if the mapping sets it directly."""
    image: Row


class Summary(NamedTuple):
    """What a plan says about a row."""

    condition: Condition
    signature: str | None
    skipped: Notice | None
    warning: Notice | None


class RequeueRules:
    """Decides whether a row is requeued, and what to warn of."""

    def __init__(self, requeue: RequeueSection, policy: RetryPolicy) -> None:
        self._policy = policy
        self._allowed = {Condition(name) for name in requeue.conditions}
        self._effects = {Attempts.KEEP: requeue.attempts.keep, Attempts.RESET: requeue.attempts.reset}

    def decide(
        self, facts: Facts, verdict: Verdict, operation: Operation, now: datetime, row: SelectedRow
    ) -> Decision:
        own = Notice(row.skip_reason) if row.skip_reason else None
        if notice := NOT_REQUEUEABLE.get(verdict.condition) or self._why_not_mapped(verdict) or own:
            return Decision(notice)
        effect = self._effects[operation.attempts]
        if effect is None:
            return Decision(_ALWAYS_RESET if operation.attempts is Attempts.KEEP else ATTEMPTS_STAY)
        if verdict.condition is Condition.RETRYING and (notice := self._why_not_earlier(facts, operation, now)):
            return Decision(notice)
        if verdict.recoverable is False and Flag.INCLUDE_UNRECOVERABLE not in operation.flags:
            return Decision(UNRECOVERABLE)
        limit = limit_of(facts, self._policy)
        used_up = verdict.condition is Condition.TERMINAL if limit is None else facts.attempts >= limit
        is_stuck = verdict.condition is Condition.STUCK
        if is_stuck and used_up and effect.effect == "last_try":
            return Decision(NO_ATTEMPTS_LEFT)
        warnings = [OLD_WORKER.text] if is_stuck else []
        if effect.effect in ("reset", "plus_one") or used_up:
            warnings.append(_EFFECTS[effect.effect])
        elif verdict.condition is Condition.TERMINAL and limit is not None:
            warnings.append(_LEFT)
        if row.warning:
            warnings.append(row.warning)
        return Decision(warning=Notice(" ".join(warnings)) if warnings else None)

    def _why_not_mapped(self, verdict: Verdict) -> Notice | None:
        return None if verdict.condition in self._allowed else _NOT_MAPPED.get(verdict.condition)

    def _why_not_earlier(self, facts: Facts, operation: Operation, now: datetime) -> Notice | None:
        if operation.attempts is not Attempts.KEEP:
            return ONLY_EARLIER
        if facts.ignored is None and (facts.due_at is None or facts.due_at <= now):
            return ALREADY_DUE
        return None


class MappingPlanner:
    """Makes the drafts and after-images of one mapping."""

    def __init__(self, resolved: ResolvedMapping, layout: MappedLayout, policy: RetryPolicy) -> None:
        self.image = RowImage(resolved, layout)
        self._resolved = resolved
        self._layout = layout
        self._policy = policy
        self._rules = RequeueRules(self.image.requeue, policy)
        requeue = self.image.requeue
        self._skip_reason, self._warning = (
            sa.null() if (found := resolved.reason(rules, "requeue", name)) is None else found
            for name, rules in (("skip", requeue.skip), ("warn", requeue.warn))
        )
        require_ready(resolved, layout.statuses, self.image)
        self._status_after: Mapping[Attempts, Expression | None] = {
            attempts: status_after(resolved, self.image, assigned) for attempts, assigned in self.image.assigned.items()
        }

    # -- drafts ----------------------------------------------------------------------------------

    def columns(self, attempts: Attempts) -> tuple[Expression, ...]:
        """What a draft needs besides the columns of a page: address, skip reason, warning, status after, image."""
        main, is_table = self._resolved.main.c, self._resolved.table.is_table
        address = main.rowid if self._resolved.sqlite else sa.cast(main.ctid, sa.Text)
        after = self._status_after[attempts]
        return (
            address if is_table else sa.null(), self._skip_reason, self._warning,
            sa.null() if after is None else after, *self.image.reads,
        )

    def drafts(self, rows: Sequence[Row], operation: Operation, now: datetime) -> list[Draft]:
        summarise = self._summaries(operation, now)
        return [self._draft(self._selected(row), summarise, operation) for row in rows]

    def _selected(self, row: Row) -> SelectedRow:
        keys, width = len(self._layout.keys), len(self._layout.roles.row)
        address, skip_reason, warning, after, *image = row[width : width + 4 + len(self.image.parts)]
        stored, values = self._layout.rows.stored(row), tuple(map(plain, image))
        return SelectedRow(row[:keys], stored, address, skip_reason, warning, after, values)

    def _draft(self, row: SelectedRow, summarise: Callable[[SelectedRow], Summary], operation: Operation) -> Draft:
        key, sqlite = self._layout.rows.key(row.stored), self._resolved.sqlite
        summary = summarise(row)
        if not storable(row.image) or (sqlite and not storable(row.key)):
            skipped = summary.skipped or NOT_STORABLE
            return Draft(str(key), "", None, summary.condition, summary.signature, skipped)
        if summary.skipped is None and (why := self._why_not_writable(row, operation)):
            summary = summary._replace(skipped=why, warning=None)
        unit = "" if row.address is None else str(row.address) if sqlite else f"{key.id}@{row.address}"
        return Draft(str(key), unit, row.image, *summary)

    def _why_not_writable(self, row: SelectedRow, operation: Operation) -> Notice | None:
        if self._resolved.sqlite and not self._layout.has_declared_types(row.key):
            return _LOOSE_KEY
        return None if self.image.fits(row.image, operation.attempts) else _TOO_LARGE

    def _summaries(self, operation: Operation, now: datetime) -> Callable[[SelectedRow], Summary]:
        """Returns a function that judges a row. Many rows fail alike, so the summaries of failed rows are kept."""
        remembered: dict[Row, Summary] = {}

        def summarise(row: SelectedRow) -> Summary:
            kind = self._kind(row)
            if kind is None:
                return self._summary(row, operation, now)
            if kind not in remembered:
                if len(remembered) >= _REMEMBERED:
                    remembered.clear()
                remembered[kind] = self._summary(row, operation, now)
            return remembered[kind]

        return summarise

    def _kind(self, row: SelectedRow) -> Row | None:
        """What the summary of a failed row depends on; None if it also depends on the time."""
        stored = row.stored
        if not self._layout.rows.is_timeless(stored.status):
            return None
        return (
            stored.status, stored.attempts, stored.max_attempts, stored.error, stored.held,
            row.skip_reason, row.warning, row.status_after,
        )

    def _summary(self, row: SelectedRow, operation: Operation, now: datetime) -> Summary:
        facts, verdict = self._layout.rows.judged(row.stored, now)
        decision = self._rules.decide(facts, verdict, operation, now, row)
        if decision.skipped is None:
            decision = self._as_predicted(decision, row, operation)
        return Summary(verdict.condition, signature_of(facts.error) if facts.error else None, *decision)

    def not_taken(self, rows: Sequence[Row], operation: Operation, now: datetime) -> Counter[str]:
        """Why its system would not take these rows after a requeue, with the number of rows for each reason."""
        found: Counter[str] = Counter()
        for row in map(self._selected, rows):
            facts, verdict = self._layout.rows.judged(row.stored, now)
            if self._rules.decide(facts, verdict, operation, now, row).skipped is None:
                prediction = self._prediction_after(row, operation)
                found.update([prediction.why] if prediction.runs is False else [])
        return found

    def _prediction_after(self, row: SelectedRow, operation: Operation) -> Prediction:
        """What its system will do with a row after the requeue."""
        facts = Facts(Phase.READY, "")  # a status column is set to a value that means ready: see require_ready
        if self._status_after[operation.attempts] is not None:
            facts = Facts(phase_of(self._layout.rows.meaning(row.status_after)), text(row.status_after))
        return predict(facts, None if row.stored.held is None else text(row.stored.held))

    def _as_predicted(self, decision: Decision, row: SelectedRow, operation: Operation) -> Decision:
        """Skip a row that its system would not take afterwards; warn if nobody can tell."""
        prediction = self._prediction_after(row, operation)
        if prediction.runs:
            return decision
        if prediction.runs is False:
            return Decision(Notice(prediction.why, prediction.advice))
        before = [decision.warning.text] if decision.warning else []
        return Decision(warning=Notice(" ".join([*before, prediction.why])))

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return self.image.after(change.before, operation.attempts, at, due)


# --- abilities ----------------------------------------------------------------------------------------------


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
        attempts=frozenset(attempts for attempts in Attempts if getattr(requeue.attempts, attempts.value) is not None),
        undo=UndoKind.EXACT if exact else UndoKind.NONE,
        stores_due_time=any(assigned.time == "due" for _, assigned in set_here),
        guard=guard,
        guard_is_weak=not changing & {*guard, *(assigned.column for _, assigned in set_here)},
        flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}),
    )


def _columns(source: Source | None) -> list[str]:
    """The columns that a source reads; for an expression, every word in it."""
    if source is None:
        return []
    return [source.column] if source.column is not None else _WORD.findall(source.expression or "")
