"""The mapping format: which columns of which table play which part, and what a requeue writes.

Identifiers are quoted by the dialect and checked against the attached database, values are bound. SQL is allowed
in the fields declared as `Sql` and nowhere else. The same models make the JSON Schema that ships for editors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from plugins.sql_table.handing_back import Requeue
from plugins.sql_table.vocabulary import (
    MAIN,
    PARTS,
    Duration,
    Keys,
    Loc,
    Mapped,
    Name,
    Native,
    Part,
    Short,
    Sql,
    one_or_more,
)

Where = Callable[[Loc], str]
"""Where in the files a part of the mapping stands, as `file:line`."""


class Source(Short):
    """A column, by its name (`alias.column` for a join's), or an expression."""

    column: Name | None = None
    expression: Sql | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.column is None) == (self.expression is None):
            raise PydanticCustomError("source", "name a column, or an expression, not both and not neither")
        return self


class Limit(Short):
    """Executions allowed in total: a column, an expression, or a number that holds for every row."""

    column: Name | None = None
    expression: Sql | None = None
    constant: int | None = Field(default=None, ge=1)

    @classmethod
    def short(cls, value: Any) -> Any:
        is_number = isinstance(value, int) and not isinstance(value, bool)
        return {"constant": value} if is_number else super().short(value)

    @classmethod
    def shorts(cls) -> list[dict[str, Any]]:
        return [*super().shorts(), {"type": "integer", "minimum": 1}]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if sum(given is not None for given in (self.column, self.expression, self.constant)) != 1:
            raise PydanticCustomError("source", "name a column, an expression, or a number")
        return self


class NextRun(Source):
    """When its own system takes an item."""

    when_null: Literal["now", "never"] = "now"


class ErrorSource(Source):
    """Where the error text is. JSON in text is read where it is valid, and shown as it is where it is not."""

    as_: Literal["text", "json", "json_array", "jsonb_array"] = Field("text", alias="as")
    """json: an object; json_array: an array whose last element is the last error; jsonb_array: `jsonb[]`."""
    message: Annotated[tuple[Name, ...], BeforeValidator(one_or_more)] = ()
    """The keys that make the message, joined by ": "; the whole value where none of them is there."""


class Case(Part):
    """One of an ordered list of predicates; the first that holds decides."""

    condition: Mapped
    when: Sql
    name: Name | None = None
    """What is shown as native status; the condition's name unless given."""

    @property
    def shown(self) -> str:
        return self.name or self.condition


class Status(Part):
    """A column and its native values per condition, or an ordered list of cases."""

    column: Name | None = None
    expression: Sql | None = None
    cases: tuple[Case, ...] = ()
    ready: tuple[Native, ...] = ()
    waiting: tuple[Native, ...] = ()
    retrying: tuple[Native, ...] = ()
    running: tuple[Native, ...] = ()
    failed: tuple[Native, ...] = ()
    terminal: tuple[Native, ...] = ()
    done: tuple[Native, ...] = ()
    cancelled: tuple[Native, ...] = ()

    @property
    def values(self) -> dict[Native, Mapped]:
        return {value: part for part in PARTS for value in getattr(self, part)}

    @model_validator(mode="after")
    def _whole(self) -> Self:
        listed = [value for part in PARTS for value in getattr(self, part)]
        if sum((self.column is not None, self.expression is not None, bool(self.cases))) != 1:
            raise PydanticCustomError("status", "name a column, an expression, or a list of cases")
        if bool(listed) == bool(self.cases):
            raise PydanticCustomError("status", "a column needs its native values per condition, cases have none")
        if len(set(listed)) < len(listed):
            raise PydanticCustomError("status", "a native value has two conditions; keep one")
        names = [case.shown for case in self.cases]
        if len(set(names)) < len(names):
            raise PydanticCustomError("status", "two cases have the same name; give each its own")
        return self


class Join(Part):
    """Another table with at most one row for each of ours."""

    table: Name
    schema_: Name | None = Field(None, alias="schema")
    match: Mapping[Name, Name] = Field(min_length=1)
    """Its column → our column."""


class History(Part):
    """Another table with a row for each past attempt, or an array in our own row."""

    table: Name | None = None
    schema_: Name | None = Field(None, alias="schema")
    match: Mapping[Name, Name] = Field(default_factory=dict)
    """Its column → our column."""
    column: Name | None = None
    """An array of objects (`jsonb[]` or JSON) in our own row, instead of a table."""
    at: Name
    outcome: Name | None = None
    error: Name | None = None
    number: Name | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.table is None) == (self.column is None) or (self.table is not None and not self.match):
            raise PydanticCustomError("history", "name a table and what it is matched by, or a column with an array")
        return self


class TableMapping(Part):
    """One queue table."""

    schema_: Name | None = Field(None, alias="schema")
    table: Name
    keys: Keys = Field(alias="key")
    """The column, or the columns, that tell every row from every other."""
    joins: Mapping[Name, Join] = Field(default_factory=dict)
    status: Status
    type: Source | None = None
    references: tuple[Name, ...] = ()
    """Columns a bare word is also looked for in: a queue, a customer."""
    attempts: Source | None = None
    max_attempts: Limit | None = None
    next_run: NextRun | None = None
    error: ErrorSource | None = None
    created: Source | None = None
    updated: Source | None = None
    executed: Source | None = None
    """When it was last executed; what a canary is judged by. `updated` unless given."""
    since: Source | None = None
    """When it began to run; what `stuck_after` is counted from. `updated` unless given."""
    stuck_after: Duration | None = None
    times: Literal["timestamp", "text", "datetime", "epoch", "epoch_ms"] | None = None
    """How times are stored, where the column's type does not tell: text is ISO 8601 with an offset, datetime is as
    SQLite's datetime() writes it, epoch counts seconds and epoch_ms milliseconds since 1970. A time that is there
    is replaced in the form it has."""
    time_zone: str = "UTC"
    """What timestamps without a zone are written in."""
    history: History | None = None
    requeue: Requeue | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if MAIN in self.joins:
            raise PydanticCustomError("joins", "job is the mapped table itself; give the join another name")
        return self


class Options(Part):
    """The config keys of this plugin, beside `plugin` and `policy`."""

    url: str
    preset: str | None = None
    mapping: TableMapping | None = Field(None, json_schema_extra={"in_a_file": True})
    """Inline, or the path of a file that holds it."""
    schema_: Name | None = Field(None, alias="schema")
    """Where the tables of a preset are, if not where its own system puts them."""
    tables: Mapping[Name, Name] = Field(default_factory=dict)
    """What tables of a preset are called here: its name → yours."""
    time_zone: str | None = None

    _where: Where | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _one(self, info: ValidationInfo) -> Self:
        if (self.preset is None) == (self.mapping is None):
            raise PydanticCustomError("source", "give a preset or a mapping, not both and not neither")
        if info.context and "where" in info.context:
            self._where = info.context["where"]
        return self

    def where(self, *loc: str | int) -> str:
        """Where a key of the mapping stands: `file:line`, or the preset's name."""
        if self.preset is not None:
            return f"preset {self.preset}"
        return "" if self._where is None else self._where(("mapping", *loc))
