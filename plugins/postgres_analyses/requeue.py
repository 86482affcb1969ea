"""Requeues and discards analyses by the rules of their retry loop: drafts and after-images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from console.core.action_rules import NOT_STORABLE
from console.core.advice import Notice
from console.core.backend import (
    Abilities,
    Action,
    Attempts,
    Change,
    DiscardAbility,
    Draft,
    Flag,
    Image,
    Operation,
    UndoKind,
)
from console.core.item import ItemKey
from console.core.policy import RetryPolicy
from console.core.signature import signature_of
from console.sql.database import Row
from console.sql.guarded import Target
from console.sql.values import plain, storable, text
from plugins.postgres_analyses.prediction import THROUGHPUT
from plugins.postgres_analyses.rows import SKIPPED, AnalysisRows, PipelineRow
from plugins.postgres_analyses.rules import Rules


def abilities(pipelines: Sequence[str]) -> Abilities:
    return Abilities(
        actions=frozenset({Action.REQUEUE, Action.DISCARD, Action.UNDO}),
        attempts=frozenset(Attempts),
        undo=UndoKind.EXACT,
        stores_due_time=False,
        guard=(*(f"{pipeline}_status" for pipeline in pipelines), "retry_count", "last_retry_at", "processed_at"),
        flags=frozenset({Flag.INCLUDE_UNRECOVERABLE}),
        throughput=THROUGHPUT,
        discard=DiscardAbility(takes_terminal=True),
    )


class AnalysisImage(NamedTuple):
    """What a plan stores of a row: the guarded columns, and the pipelines that are set pending by force."""

    statuses: tuple[Any, ...]
    retry_count: Any
    last_retry_at: Any
    processed_at: Any
    """Never changed by a requeue; another row with the same id has another one."""
    forced: str
    """Names of pipelines, separated by commas."""

    @classmethod
    def parse(cls, image: Image) -> AnalysisImage:
        *statuses, retry_count, last_retry_at, processed_at, forced = image
        return cls(tuple(statuses), retry_count, last_retry_at, processed_at, forced)

    @property
    def values(self) -> Image:
        """The image as plans store it."""
        return (*self.statuses, self.retry_count, self.last_retry_at, self.processed_at, self.forced)


class AnalysisPlanner:
    """Makes the drafts and after-images of one table."""

    def __init__(
        self, backend: str, table: str, pipelines: tuple[str, ...], policy: RetryPolicy,
        rows: AnalysisRows, *, sqlite: bool,
    ) -> None:
        self._backend = backend
        self._pipelines = pipelines
        self.rows = rows
        self.rules = Rules(policy, rows)
        self._sqlite = sqlite
        self.target = Target(table, "id", abilities(pipelines).guard, integer_key=True, key_parts=2)

    def drafts(
        self, batches: Iterable[Sequence[Row]], operation: Operation, now: datetime, *, neighbours: bool
    ) -> Iterator[list[Draft]]:
        """Drafts with the pipelines of a row together. `neighbours`: the rows arrive in the order of their ids."""
        drafting = Drafting(self, operation, now)
        held: dict[object, list[PipelineRow]] = {}
        for batch in batches:
            for row in map(self.rows.pipeline_row, batch):
                held.setdefault(row.id, []).append(row)
            if neighbours and len(held) > 1:
                id, last = held.popitem()  # the next batch may continue this row
                yield drafting.drafts(held.values())
                held = {id: last}
        if held:
            yield drafting.drafts(held.values())

    def unit(self, row: PipelineRow) -> str:
        return str(row.address) if self._sqlite else f"{row.id}@{row.address}"

    def key(self, row: PipelineRow) -> ItemKey:
        return ItemKey(self._backend, (text(row.id), row.pipeline))

    def after(self, change: Change, operation: Operation) -> Image:
        """Without a last retry and with attempts left, the loop retries the row in its next cycle. It never takes a
        skipped pipeline."""
        before = AnalysisImage.parse(change.before)
        if operation.discards:
            return before._replace(statuses=self._skipped(change, before)).values
        forced = {key.parts[1] for key in change.keys} & set(before.forced.split(","))
        statuses = [
            "pending" if pipeline in forced else status
            for pipeline, status in zip(self._pipelines, before.statuses, strict=True)
        ]
        resets = operation.attempts is Attempts.RESET or bool(forced)
        retry_count = 0 if resets else before.retry_count
        return before._replace(statuses=tuple(statuses), retry_count=retry_count, last_retry_at=None).values

    def _skipped(self, change: Change, before: AnalysisImage) -> tuple[Any, ...]:
        """The statuses of the row's pipelines once those of the change are skipped."""
        given_up = {key.parts[1] for key in change.keys}
        pairs = zip(self._pipelines, before.statuses, strict=True)
        return tuple(SKIPPED if pipeline in given_up else status for pipeline, status in pairs)


class Drafting:
    """Makes the drafts of one plan."""

    def __init__(self, planner: AnalysisPlanner, operation: Operation, now: datetime) -> None:
        self._planner = planner
        self._operation = operation
        self._now = now

    def drafts(self, units: Iterable[list[PipelineRow]]) -> list[Draft]:
        return [draft for rows in units for draft in self._unit(rows)]

    def _unit(self, rows: list[PipelineRow]) -> Iterator[Draft]:
        planner, rules = self._planner, self._planner.rules
        read = planner.rows
        verdicts = [read.judged(row, read.times(row), self._now)[2] for row in rows]
        decided = [rules.decide(row, v, self._operation, self._now) for row, v in zip(rows, verdicts, strict=True)]
        forced = [row.pipeline for row, decision in zip(rows, decided, strict=True) if decision.forced]
        first = rows[0]
        statuses = tuple(map(plain, first.statuses))
        retry_count, *times = map(plain, (first.retry_count, first.last_retry_at, first.processed_at))
        before = AnalysisImage(statuses, retry_count, times[0], times[1], ",".join(forced)).values
        for row, verdict, decision in zip(rows, verdicts, decided, strict=True):
            key, condition = str(planner.key(row)), verdict.condition
            signature = signature_of(text(row.error)) if row.error else None
            if not storable(before):
                yield Draft(key, "", None, condition, signature, NOT_STORABLE)
                continue
            warning = Notice(" ".join(decision.warnings)) if decision.warnings else None
            yield Draft(key, planner.unit(row), before, condition, signature, decision.skipped, warning)
