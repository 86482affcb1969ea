"""The mapping format: what the columns of a table mean, and what a requeue and a discard write.

Identifiers are quoted by the dialect and checked against the attached database, values are bound. SQL is allowed only
in fields of type `Sql`, `Statement` and `WriteSql`. The JSON Schema for editors is generated from these models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from console.sql.table import Meaning
from plugins.sql_table.change_schema import DiscardSection, RequeueSection
from plugins.sql_table.fragments import formula
from plugins.sql_table.mapping_types import (
    MEANINGS,
    TABLE_ALIAS,
    ConditionKey,
    Duration,
    Keys,
    Loc,
    Name,
    RowRule,
    Scalar,
    Section,
    ShorthandSection,
    Sql,
    as_tuple,
)

Where = Callable[[Loc], str]
"""Returns the location of a key of the mapping, as `file:line`."""


class Source(ShorthandSection):
    """A column by its name (`alias.column` for a join), or an expression."""

    column: Name | None = None
    expression: Sql | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.column is None) == (self.expression is None):
            raise PydanticCustomError("source", "give either a column or an expression")
        return self


class Limit(ShorthandSection):
    """The number of executions allowed in total: a column, an expression, or a number for all rows."""

    column: Name | None = None
    expression: Sql | None = None
    constant: int | None = Field(default=None, ge=1)

    @classmethod
    def expand(cls, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return {"constant": value} if is_number else super().expand(value)

    @classmethod
    def short_forms(cls) -> list[dict[str, Any]]:
        return [*super().short_forms(), {"type": "integer", "minimum": 1}]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.column, self.expression, self.constant)) != 1:
            raise PydanticCustomError("source", "give a column, an expression or a number")
        return self


class NextRun(Source):
    """When the queue runs an item next."""

    when_null: Literal["now", "never"] = "now"


class ErrorSource(Source):
    """The error text. JSON in a text column is parsed if it is valid, otherwise shown unchanged."""

    as_: Literal["text", "json", "json_array"] = Field("text", alias="as")
    """json: an object; json_array: a JSON array or `jsonb[]`, whose last element is the last error."""
    message: Annotated[tuple[Name, ...], BeforeValidator(as_tuple)] = ()
    """The keys of the message, joined by ": ". The whole value is used if none of them exists."""


class Case(Section):
    """One of an ordered list of predicates. The first that is true decides."""

    condition: ConditionKey
    when: Sql
    name: Name | None = None
    """The native status to show; the condition's name by default."""

    @property
    def native_status(self) -> str:
        return self.name or self.condition

    @property
    def meaning(self) -> Meaning:
        return MEANINGS[self.condition]


class Status(Section):
    """A column with its native values per condition, or an ordered list of cases. Other values are unknown."""

    column: Name | None = None
    expression: Sql | None = None
    cases: tuple[Case, ...] = ()
    ready: tuple[Scalar, ...] = ()
    waiting: tuple[Scalar, ...] = ()
    retrying: tuple[Scalar, ...] = ()
    running: tuple[Scalar, ...] = ()
    failed: tuple[Scalar, ...] = ()
    terminal: tuple[Scalar, ...] = ()
    done: tuple[Scalar, ...] = ()
    cancelled: tuple[Scalar, ...] = ()

    @property
    def values(self) -> dict[Scalar, Meaning]:
        return {value: meaning for key, meaning in MEANINGS.items() for value in getattr(self, key)}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        listed = [value for key in MEANINGS for value in getattr(self, key)]
        if sum((self.column is not None, self.expression is not None, bool(self.cases))) != 1:
            raise PydanticCustomError("status", "give a column, an expression or a list of cases")
        if listed and self.cases:
            raise PydanticCustomError("status", "cases must not have native values per condition beside them")
        if len(set(listed)) < len(listed):
            raise PydanticCustomError("status", "a native value is listed under two conditions; keep one")
        names = [case.native_status for case in self.cases]
        if len(set(names)) < len(names):
            raise PydanticCustomError("status", "two cases have the same name; rename one")
        return self


class Join(Section):
    """Another table with at most one row for each row of the mapped table."""

    table: Name
    schema_: Name | None = Field(None, alias="schema")
    match: Mapping[Name, Name] = Field(min_length=1)
    """Its column → the column of the mapped table."""


class History(Section):
    """Past attempts: another table with one row for each, or an array in the row itself."""

    table: Name | None = None
    schema_: Name | None = Field(None, alias="schema")
    match: Mapping[Name, Name] = Field(default_factory=dict)
    """Its column → the column of the mapped table."""
    column: Name | None = None
    """An array of objects (`jsonb[]` or JSON) in the row itself."""
    at: Name
    outcome: Name | None = None
    error: Name | None = None
    number: Name | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.table is None) == (self.column is None) or (self.table is not None and not self.match):
            raise PydanticCustomError("history", "give either a table with match, or a column with an array")
        return self


class KeepsFailed(Section):
    """How long a system that deletes finished rows keeps failed ones."""

    keeps_failed: Duration


class TableMapping(Section):
    """The mapping of one queue table."""

    schema_: Name | None = Field(None, alias="schema")
    table: Name
    keys: Keys = Field(alias="key")
    """The column or columns that identify a row."""
    joins: Mapping[Name, Join] = Field(default_factory=dict)
    status: Status
    type: Source | None = None
    references: tuple[Name, ...] = ()
    """Further columns that a bare word in a filter searches, for example a queue or a customer."""
    attempts: Source | None = None
    max_attempts: Limit | None = None
    next_run: NextRun | None = None
    error: ErrorSource | None = None
    created: Source | None = None
    updated: Source | None = None
    executed: Source | None = None
    """When it was last executed, which proves that a requeued item ran; `updated` by default."""
    execution_counter: Name | None = None
    """A column of the requeue's guard that `attempts` shows and that grows with every execution. It proves that a
    requeued item ran better than a time does, because clocks differ and others may change the row."""
    deletes_finished: bool | KeepsFailed = False
    """Its system deletes finished rows: a requeued row that vanishes has recovered. If it deletes failed rows as well,
    `keeps_failed` says after how long. false: nobody can tell what happened to an item whose row vanishes."""
    expires: Source | None = None
    """When its system deletes the row. Retriage warns while it is close."""
    since: Source | None = None
    """When it began to run; `stuck_after` counts from here. `updated` by default."""
    stuck_after: Duration | None = None
    stuck: tuple[RowRule, ...] = ()
    """Running rows that are stuck at once, for example because their worker is dead."""
    reclaims: bool | None = None
    """Whether its system takes a stuck row again by itself, while attempts are left. Without it, nobody can tell."""
    held: tuple[RowRule, ...] = ()
    """Ready rows that its system does not take for now. Nobody can tell when they run."""
    times: Literal["timestamp", "text", "datetime", "epoch", "epoch_ms"] | None = None
    """How times are stored, if the column type does not say: text is ISO 8601 with an offset, datetime is the format of
    SQLite's datetime(), epoch counts seconds and epoch_ms milliseconds since 1970. A written time keeps the format of
    the time it replaces."""
    time_zone: str = "UTC"
    """The time zone of timestamps without a zone."""
    history: History | None = None
    requeue: RequeueSection | None = None
    discard: DiscardSection | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.discard is not None:
            self._require_guard(self.discard)
        if TABLE_ALIAS in self.joins:
            raise PydanticCustomError("joins", "job is the name of the mapped table; give the join another name")
        counter, guard = self.execution_counter, () if self.requeue is None else self.requeue.guard
        if counter is not None and counter not in guard:
            raise PydanticCustomError("counter", "execution_counter must be a column of requeue.guard")
        return self

    def _require_guard(self, discard: DiscardSection) -> None:
        """A discard compares the guard of the requeue, and its formulas use only what is compared."""
        if self.requeue is None:
            raise PydanticCustomError("discard", "discard needs a requeue section, whose guard it uses")
        known = {*self.requeue.guard, *self.requeue.set}
        for name, assigned in discard.set.items():
            unknown = formula(assigned.formula).names - known - {*discard.set} if assigned.formula else set()
            if unknown:
                what = "the formula of {name} uses {column}; add {column} to requeue.guard"
                raise PydanticCustomError("formula", what, {"name": name, "column": min(unknown)})


class Options(Section):
    """The config keys of this plugin, in addition to `plugin` and `policy`."""

    url: str
    preset: str | None = None
    mapping: TableMapping | None = Field(None, json_schema_extra={"in_a_file": True})
    """The mapping itself, or the path of a file that contains it."""
    schema_: Name | None = Field(None, alias="schema")
    """The schema of a preset's tables, if it is not the default."""
    tables: Mapping[Name, Name] = Field(default_factory=dict)
    """Other names for the tables of a preset: its name → the name in this database."""
    time_zone: str | None = None

    _where: Where | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _one(self, info: ValidationInfo) -> Self:
        if (self.preset is None) == (self.mapping is None):
            raise PydanticCustomError("source", "give either a preset or a mapping")
        if info.context and "where" in info.context:
            self._where = info.context["where"]
        return self

    def where(self, *loc: str | int) -> str:
        """The location of a key of the mapping: `file:line`, or the preset's name."""
        if self.preset is not None:
            return f"preset {self.preset}"
        return "" if self._where is None else self._where(("mapping", *loc))
