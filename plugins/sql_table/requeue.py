"""Requeues and discards mapped items: which ones, what is written, and why others are skipped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from console.core.action_rules import (
    ALREADY_DUE,
    ATTEMPTS_STAY,
    NO_ATTEMPTS_LEFT,
    NOT_REQUEUEABLE,
    NOT_STORABLE,
    OLD_WORKER,
    TOO_LARGE,
    UNRECOVERABLE,
    Decision,
    decide_discard,
    why_not_earlier,
)
from console.core.advice import Advice, Notice, Step
from console.core.backend import (
    Abilities,
    Action,
    Attempts,
    Change,
    Deletion,
    DiscardAbility,
    Draft,
    Flag,
    Image,
    Operation,
    UndoKind,
)
from console.core.item import Condition, Verdict
from console.core.policy import Facts, Phase, RetryPolicy, limit_of
from console.core.prediction import Prediction
from console.core.signature import signature_of
from console.sql.database import Row
from console.sql.layout import Expression
from console.sql.table import StoredRow, phase_of
from console.sql.values import is_too_large, own_key, plain, storable, text
from plugins.sql_table.change_schema import DiscardSection, RequeueSection
from plugins.sql_table.image import RowImage, requeue_assignments
from plugins.sql_table.layout import MappedLayout
from plugins.sql_table.mapping import KeepsFailed, TableMapping
from plugins.sql_table.prediction import predict
from plugins.sql_table.resolved import ResolvedMapping
from plugins.sql_table.status_after import (
    columns_read,
    is_over,
    require_attempts_left,
    require_given_up,
    require_ready,
    status_after,
)
from plugins.sql_table.tables import Column
from plugins.sql_table.writes import DISCARD, way_of, write_rules

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
_LOOSE_KEY = Notice("Its key is not of its column's type, so a write could not find it.")
_SMALL_TYPES = (
    "smallint", "integer", "bigint", "numeric", "real", "double", "boolean", "date", "time", "uuid", "oid", "interval",
)
_NUMBER_TOO_LARGE = Notice("Holds a number so large that the new value would be too large to write.")


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
    """The native status after the write; None if the mapping sets it directly."""
    too_large: bool
    """Whether its key or a value of its image is too large for a plan. Such values are not read."""
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
        effect, keeps = self._effects[operation.attempts], operation.attempts is Attempts.KEEP
        if effect is None:
            return Decision(_ALWAYS_RESET if keeps else ATTEMPTS_STAY)
        if verdict.condition is Condition.RETRYING and (notice := why_not_earlier(facts, now, keeps=keeps)):
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


class DiscardRules:
    """Decides whether a row is discarded, and what to warn of."""

    def __init__(self, discard: DiscardSection | None) -> None:
        self._allowed = {Condition(name) for name in discard.conditions} if discard is not None else set()

    def decide(self, verdict: Verdict, row: SelectedRow) -> Decision:
        usual = decide_discard(verdict.condition, takes_terminal=Condition.TERMINAL in self._allowed)
        if usual.skipped is not None:
            return usual
        if verdict.condition not in self._allowed:
            return Decision(Notice(f"The mapping does not discard {verdict.condition} items."))
        if row.skip_reason:
            return Decision(Notice(row.skip_reason))
        warnings = [text for text in (usual.warning.text if usual.warning else None, row.warning) if text]
        return Decision(warning=Notice(" ".join(warnings)) if warnings else None)


class MappingPlanner:
    """Makes the drafts and after-images of one mapping."""

    def __init__(self, resolved: ResolvedMapping, layout: MappedLayout, policy: RetryPolicy) -> None:
        self.image = RowImage(resolved, layout)
        self._resolved = resolved
        self._layout = layout
        self._policy = policy
        self._rules = RequeueRules(self.image.requeue, policy)
        self._discard_rules = DiscardRules(resolved.mapping.discard)
        self._reasons = {section: self._reasons_of(section) for section in ("requeue", "discard")}
        """The expressions for the skip reason and the warning of a row, by section."""
        require_ready(resolved, layout.statuses, self.image)
        require_attempts_left(resolved, self.image, policy.max_attempts)
        require_given_up(resolved, layout.statuses)
        self._status_after: Mapping[str, Expression | None] = {
            way: status_after(resolved, self.image, assigned) for way, assigned in self.image.assigned.items()
        }
        due = columns_read(resolved.mapping.next_run)
        self._keeps_due = {
            way for way, assigned in self.image.assigned.items()
            if not due & {one.column or name for name, one in assigned.items()}
        }
        """The ways to write that leave the due time as it is."""

    def _reasons_of(self, section: str) -> tuple[Expression, Expression]:
        rules = getattr(self._resolved.mapping, section)
        skip, warn = (
            None if rules is None else self._resolved.reason(getattr(rules, name), section, name)
            for name in ("skip", "warn")
        )
        return sa.null() if skip is None else skip, sa.null() if warn is None else warn

    # -- drafts ----------------------------------------------------------------------------------

    def columns(self, operation: Operation) -> tuple[Expression, ...]:
        """What a draft needs: the columns of a page, address, skip reason, warning, status after, whether it is too
        large, image."""
        keys, listed = len(self._layout.keys), self._layout.roles.row
        if self._resolved.sqlite:
            listed = (*map(own_key, listed[:keys]), *listed[keys:])
        main, is_table = self._resolved.main.c, self._resolved.table.is_table
        address: Any = sa.null()
        if not self._resolved.mysql and is_table:
            address = main.rowid if self._resolved.sqlite else sa.cast(main.ctid, sa.Text)
        after = self._status_after[way_of(operation)]
        return (
            *listed, address, *self._reasons[self.image.rules[operation.action].section],
            sa.null() if after is None else after, *self._own_values(),
        )

    def _own_values(self) -> tuple[Expression, ...]:
        """Whether a value that the plan keeps is too large, and the image. NULL is read instead of such a value."""
        keys = zip((found.column for found in self._layout.keys), self._layout.roles.key, strict=True)
        large = [is_too_large(read) for column, read in keys if self._may_be_large(column)]
        image: list[Expression] = []
        for part, read in zip(self.image.parts, self.image.reads, strict=True):
            if self._may_be_large(part.stored):
                large.append(is_too_large(read))
                image.append(sa.case((sa.not_(large[-1]), read)))
            else:
                image.append(read)
        return sa.or_(sa.false(), *large), *image

    def _may_be_large(self, column: Column) -> bool:
        """By its type. In SQLite, any column may hold a text."""
        small = column.type.startswith(_SMALL_TYPES) and not column.type.endswith("[]")
        return self._resolved.sqlite or not small

    def drafts(self, rows: Sequence[Row], operation: Operation, now: datetime) -> list[Draft]:
        summarise = self._summaries(operation, now)
        return [self._draft(self._selected(row), summarise, operation) for row in rows]

    def _selected(self, row: Row) -> SelectedRow:
        keys, width = len(self._layout.keys), len(self._layout.roles.row)
        address, skip_reason, warning, after, large, *image = row[width : width + 5 + len(self.image.parts)]
        stored, values = self._layout.rows.stored(row), tuple(map(plain, image))
        return SelectedRow(row[:keys], stored, address, skip_reason, warning, after, bool(large), values)

    def _draft(self, row: SelectedRow, summarise: Callable[[SelectedRow], Summary], operation: Operation) -> Draft:
        key, sqlite = self._layout.rows.key(row.stored), self._resolved.sqlite
        summary = summarise(row)
        if row.too_large or not storable(row.image) or (sqlite and not storable(row.key)):
            skipped = summary.skipped or (TOO_LARGE if row.too_large else NOT_STORABLE)
            return Draft(str(key), "", None, summary.condition, summary.signature, skipped)
        if summary.skipped is None and (why := self._why_not_writable(row, operation)):
            summary = summary._replace(skipped=why, warning=None)
        unit = "" if row.address is None else str(row.address) if sqlite else f"{key.id}@{row.address}"
        return Draft(str(key), unit, row.image, *summary)

    def _why_not_writable(self, row: SelectedRow, operation: Operation) -> Notice | None:
        if self._resolved.sqlite and not self._layout.has_declared_types(row.key):
            return _LOOSE_KEY
        return None if self.image.fits(row.image, way_of(operation)) else _NUMBER_TOO_LARGE

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
        decision = self._decide(facts, verdict, operation, now, row)
        if decision.skipped is None:
            decision = self._as_predicted(decision, row, operation)
        return Summary(verdict.condition, signature_of(facts.error) if facts.error else None, *decision)

    def _decide(
        self, facts: Facts, verdict: Verdict, operation: Operation, now: datetime, row: SelectedRow
    ) -> Decision:
        if operation.discards:
            return self._discard_rules.decide(verdict, row)
        return self._rules.decide(facts, verdict, operation, now, row)

    def not_as_meant(self, rows: Sequence[Row], operation: Operation, now: datetime) -> Counter[str]:
        """Why its system would not take these rows after a requeue, or would after a discard, with the number of rows
        for each reason."""
        found: Counter[str] = Counter()
        for row in map(self._selected, rows):
            facts, verdict = self._layout.rows.judged(row.stored, now)
            if not row.too_large and self._decide(facts, verdict, operation, now, row).skipped is None:
                if operation.discards:
                    why = self._not_given_up(row)
                else:
                    prediction = self._prediction_after(row, operation)
                    why = prediction.why if prediction.runs is False else None
                found.update([] if why is None else [why])
        return found

    def _not_given_up(self, row: SelectedRow) -> str | None:
        """Why a row is not over after a discard, as the mapping's own cases see it."""
        if self.image.rules[Action.DISCARD].delete or self._status_after[DISCARD] is None:
            return None  # a status column is set to a value that means over: see require_given_up
        meaning = self._layout.rows.meaning(row.status_after)
        if is_over(meaning, self._resolved.mapping):
            return None
        status = text(row.status_after)
        return f"Its status would be {status!r}, which the mapping does not call done, cancelled or terminal."

    def _prediction_after(self, row: SelectedRow, operation: Operation) -> Prediction:
        """What its system will do with a row after the requeue."""
        facts = Facts(Phase.READY, "")  # a status column is set to a value that means ready: see require_ready
        way, rows = way_of(operation), self._layout.rows
        if self._status_after[way] is not None:
            facts = Facts(phase_of(rows.meaning(row.status_after)), text(row.status_after))
        if way in self._keeps_due:
            facts = facts._replace(ignored=rows.schedule(row.stored)[1])
        return predict(facts, None if row.stored.held is None else text(row.stored.held))

    def _as_predicted(self, decision: Decision, row: SelectedRow, operation: Operation) -> Decision:
        """Skip a row that its system would not take after a requeue, or would after a discard; warn if nobody can
        tell."""
        if operation.discards:
            why = self._not_given_up(row)
            return decision if why is None else Decision(Notice(why))
        prediction = self._prediction_after(row, operation)
        if prediction.runs:
            return decision
        if prediction.runs is False:
            return Decision(Notice(prediction.why, prediction.advice))
        before = [decision.warning.text] if decision.warning else []
        return Decision(warning=Notice(" ".join([*before, prediction.why])))

    def after(self, change: Change, operation: Operation, at: datetime, due: datetime) -> Image:
        return self.image.after(change.before, operation, at, due)


# --- abilities ----------------------------------------------------------------------------------------------


def abilities_of(mapping: TableMapping) -> Abilities:
    requeue = mapping.requeue
    if requeue is None:
        return Abilities(frozenset(), frozenset(), UndoKind.NONE, stores_due_time=False, guard=())
    set_here = requeue_assignments(requeue)
    rules = write_rules(mapping)
    exact, discard = rules[Action.REQUEUE].by_update, rules.get(Action.DISCARD)
    actions = {Action.REQUEUE} | ({Action.UNDO} if exact or (discard and discard.by_update) else set())
    guard = tuple(dict.fromkeys((*requeue.guard, *(loc[-1] for loc, _ in set_here))))
    changing = columns_read(mapping.attempts) | columns_read(mapping.updated)
    return Abilities(
        actions=frozenset(actions if discard is None else {*actions, Action.DISCARD}),
        attempts=frozenset(attempts for attempts in Attempts if getattr(requeue.attempts, attempts.value) is not None),
        undo=UndoKind.EXACT if exact else UndoKind.NONE,
        stores_due_time=any(assigned.time == "due" for _, assigned in set_here),
        guard=guard,
        guard_is_weak=not changing & {*guard, *(assigned.column for _, assigned in set_here)},
        flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}),
        execution_counter=mapping.execution_counter,
        deletes_finished=_deletion(mapping.deletes_finished),
        discard=None if mapping.discard is None or discard is None else DiscardAbility(
            UndoKind.EXACT if discard.by_update else UndoKind.NONE, discard.delete,
            "terminal" in mapping.discard.conditions,
        ),
        no_discard="Its mapping has no discard section.",
        tells_executions=any((mapping.executed, mapping.updated, mapping.execution_counter)),
    )


def _deletion(given: bool | KeepsFailed) -> Deletion | None:
    if isinstance(given, KeepsFailed):
        return Deletion(given.keeps_failed)
    return Deletion() if given else None
