"""The requeue and discard sections of the mapping format: what is written, and how that changes the attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from plugins.sql_table.fragments import formula, fragment
from plugins.sql_table.mapping_types import (
    STATEMENT_VALUES,
    Duration,
    FormulaText,
    Name,
    RowRule,
    Scalar,
    Section,
    ShorthandSection,
    Sql,
    Statement,
    WriteSql,
)


class Assignment(ShorthandSection):
    """The new content of a column: a value, a time, or a formula over the columns of the row."""

    value: Scalar | None = None
    later: Scalar | None = None
    """The value instead if the item is due later than now."""
    time: Literal["now", "due"] | None = None
    plus: Duration | None = None
    """Added to the time. A later time that the column already has is kept."""
    formula: FormulaText | None = None
    column: Name | None = None
    """The column to write, if it differs from the name of the assignment."""
    read: Sql | None = None
    """An expression to compare and record instead of the whole column, for example one key of a JSON column."""
    write: WriteSql | None = None
    """An expression that puts `:value` into the column."""

    @classmethod
    def expand(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"value": value}

    @classmethod
    def short_forms(cls) -> list[dict[str, Any]]:
        return [{"type": ["string", "integer", "boolean", "null"]}]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len({"value", "time", "formula"} & self.model_fields_set) != 1:
            raise PydanticCustomError("assigned", "give a value, a time (now or due) or a formula")
        for key, needed in (("later", "value"), ("plus", "time")):
            if {key, needed} & self.model_fields_set == {key}:
                raise PydanticCustomError("assigned", "{key} needs {needed}", {"key": key, "needed": needed})
        return self


class Effect(Section):
    """How a requeue changes the number of tries left, which the plan shows, and what it writes for that."""

    effect: Literal["headroom", "plus_one", "last_try", "reset"]
    """headroom: the limit is raised so that one more try fits; plus_one: the requeue itself counts as an attempt;
    last_try: the counter is kept and one more try is possible; reset: the counter starts again."""
    set: Mapping[Name, Assignment] = Field(default_factory=dict)


class AttemptsSection(Section):
    """The choices for the attempts of a requeued item that this queue supports."""

    keep: Effect | None = None
    reset: Effect | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.keep is None and self.reset is None:
            raise PydanticCustomError("attempts", "give keep, reset, or both")
        return self


Argument = Literal["key", "keys", "now", "due"] | bool | int | None


class FunctionCall(Section):
    """A stored function of the queue, called once for each row."""

    name: Name
    schema_: Name | None = Field(None, alias="schema")
    arguments: tuple[Argument, ...] | Mapping[Name, Argument] = ()
    """By position or by name: key (of the row), keys (the key as an array), now, due, a number, true, false or null."""


class ChangeSection(Section):
    """How an item is changed by the rules of its queue: by an UPDATE, a function or statements."""

    set: Mapping[Name, Assignment] = Field(default_factory=dict)
    """What an UPDATE writes. With a function or statements: what the row contains afterwards."""
    skip: tuple[RowRule, ...] = ()
    """Rows that are left alone, and why."""
    warn: tuple[RowRule, ...] = ()
    """What a plan warns of."""
    lock: Sql | None = None
    """An expression that must be true for the write, usually the advisory lock that workers take. A discard without
    one has that of the requeue."""
    function: FunctionCall | None = None
    statements: tuple[Statement, ...] = ()
    """Run in order for each row, in one transaction. Each must return the rows it changed."""

    def require_one_way(self, kind: str, assigned: Iterable[Assignment]) -> None:
        """Refuse a function together with statements, and values that cannot be written in the chosen way."""
        if self.function is not None and self.statements:
            raise PydanticCustomError(kind, "give either a function or statements")
        if self.function is None and not self.statements:
            _require_both_ways(assigned)
        _require_times(self.set, self.function, self.statements)


class RequeueSection(ChangeSection):
    """How an item is requeued by the rules of its queue."""

    conditions: tuple[Literal["failed", "terminal", "retrying", "stuck"], ...] = ("failed", "terminal", "retrying")
    guard: tuple[Name, ...] = Field(min_length=1)
    """Columns that must be unchanged since the plan, in addition to those that are set."""
    attempts: AttemptsSection

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        rules = [rule for rule in (self.attempts.keep, self.attempts.reset) if rule is not None]
        parts = [*self.set.values(), *(assigned for rule in rules for assigned in rule.set.values())]
        self.require_one_way("requeue", parts)
        known = {*self.guard, *self.set}
        for rule in rules:
            for name, assigned in {**self.set, **rule.set}.items():
                unknown = formula(assigned.formula).names - known - {name} if assigned.formula else set()
                if unknown:
                    what = "the formula of {name} uses {column}; add {column} to guard"
                    raise PydanticCustomError("formula", what, {"name": name, "column": min(unknown)})
        return self


class DiscardSection(ChangeSection):
    """How an item is given up by the rules of its queue. It has the guard of the requeue section."""

    conditions: tuple[Literal["failed", "terminal", "retrying", "stuck"], ...] = ("failed", "retrying", "stuck")
    """Terminal only if the queue itself has a way to close or delete such items."""
    delete: bool = False
    """The row is deleted, so that nothing can be undone. With a function or statements: these delete it."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.set) == self.delete:
            raise PydanticCustomError("discard", "give what to set, or delete")
        if self.delete and any(fragment(text, STATEMENT_VALUES).binds - {"key"} for text in self.statements):
            raise PydanticCustomError("discard", "statements that delete a row can only use :key")
        if any(assigned.time == "due" for assigned in self.set.values()):
            raise PydanticCustomError("discard", "a discarded item is never due; use the time now")
        self.require_one_way("discard", self.set.values())
        return self


def _require_both_ways(assigned: Iterable[Assignment]) -> None:
    """An UPDATE of a part of a column needs both ways: how to read it and how to write it."""
    if any((one.read is None) != (one.write is None) for one in assigned):
        raise PydanticCustomError("requeue", "an assignment with read also needs write, and the other way round")


def _require_times(
    assigned: Mapping[str, Assignment], function: FunctionCall | None, statements: Sequence[str]
) -> None:
    """The plan must contain every time that is written."""
    used = {name for text in statements for name in fragment(text, STATEMENT_VALUES).binds}
    if function is not None:
        given = function.arguments
        used = {str(value) for value in (given.values() if isinstance(given, Mapping) else given)}
    known = {one.time for one in assigned.values()}
    for time in ("now", "due"):
        if time in used and time not in known:
            what = "{time} is used, so a column in set must have it as its time"
            raise PydanticCustomError("times", what, {"time": time})
