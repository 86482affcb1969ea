"""The part of the mapping format that says what a requeue writes, and what that does to the attempts left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from plugins.sql_table.fragments import formula, fragment
from plugins.sql_table.vocabulary import WRITTEN, FormulaText, Name, Native, Part, Short, Sql, Statement, WriteSql


class Assigned(Short):
    """What a column becomes: a value, a time, or a formula over the row's own columns."""

    value: Native | None = None
    time: Literal["now", "due"] | None = None
    formula: FormulaText | None = None
    column: Name | None = None
    """The column that is written, where it is not the one named."""
    read: Sql | None = None
    """What is compared and recorded instead of the column itself: a part of a JSON column."""
    write: WriteSql | None = None
    """How `:value` is put into the column."""

    @classmethod
    def short(cls, value: Any) -> Any:
        return value if isinstance(value, dict) else {"value": value}

    @classmethod
    def shorts(cls) -> list[dict[str, Any]]:
        return [{"type": ["string", "integer", "boolean", "null"]}]

    @model_validator(mode="after")
    def _one(self) -> Self:
        if len({"value", "time", "formula"} & self.model_fields_set) != 1:
            raise PydanticCustomError("assigned", "give a value, a time (now or due), or a formula")
        return self


class Effect(Part):
    """What a requeue does to the attempts that are left, told in the plan, and what it writes for that."""

    effect: Literal["headroom", "plus_one", "last_try", "reset"]
    """headroom: the maximum is raised so that one more try fits; plus_one: the requeue itself counts as an
    attempt; last_try: the counter stays and it dies after one more try; reset: the counter starts again."""
    set: Mapping[Name, Assigned] = Field(default_factory=dict)


class Budgets(Part):
    """The budgets this system can be given."""

    keep: Effect | None = None
    fresh: Effect | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.keep is None and self.fresh is None:
            raise PydanticCustomError("budgets", "give keep, fresh, or both")
        return self


Argument = Literal["key", "keys", "now", "due"] | int | None


class FunctionCall(Part):
    """A stored function of the system itself, called once for each row."""

    name: Name
    schema_: Name | None = Field(None, alias="schema")
    arguments: tuple[Argument, ...] | Mapping[Name, Argument] = ()
    """In order, or by name: key (of the row), keys (the same as an array), now, due, a number, null."""


class BlockedWhen(Part):
    """Rows a requeue must leave alone, and why."""

    when: Sql
    why: Name


class Requeue(Part):
    """Handing an item back, by the rules of its own system."""

    conditions: tuple[Literal["failed", "terminal", "retrying", "stuck"], ...] = ("failed", "terminal", "retrying")
    guard: tuple[Name, ...] = Field(min_length=1)
    """The columns that must still be as the plan saw them, beside those that are set."""
    set: Mapping[Name, Assigned] = Field(default_factory=dict)
    """What a guarded UPDATE writes; with a function or statements, what is known to be there afterwards."""
    budgets: Budgets
    blocked: tuple[BlockedWhen, ...] = ()
    lock: Sql | None = None
    """Must be true when the row is written: an advisory lock its workers take."""
    function: FunctionCall | None = None
    statements: tuple[Statement, ...] = ()
    """Run in order for each row, in one transaction; each must return the rows it changed."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if self.function is not None and self.statements:
            raise PydanticCustomError("requeue", "a function or statements, not both")
        rules = [rule for rule in (self.budgets.keep, self.budgets.fresh) if rule is not None]
        parts = [*self.set.values(), *(assigned for rule in rules for assigned in rule.set.values())]
        if self.function is None and not self.statements and any((a.read is None) != (a.write is None) for a in parts):
            raise PydanticCustomError("requeue", "what is read by an expression needs write, to be set by an UPDATE")
        self._require_times()
        known = {*self.guard, *self.set}
        for rule in rules:
            for name, assigned in {**self.set, **rule.set}.items():
                unknown = formula(assigned.formula).names - known - {name} if assigned.formula else set()
                if unknown:
                    what = "the formula of {name} uses {column}, which is not in guard"
                    raise PydanticCustomError("formula", what, {"name": name, "column": min(unknown)})
        return self

    def _require_times(self) -> None:
        """A time that is written must be one the plan knows."""
        used = {name for text in self.statements for name in fragment(text, WRITTEN).binds}
        if self.function is not None:
            given = self.function.arguments
            used = {str(value) for value in (given.values() if isinstance(given, Mapping) else given)}
        known = {assigned.time for assigned in self.set.values()}
        for time in ("now", "due"):
            if time in used and time not in known:
                what = "{time} is used, but no column in set has it as its time, so the plan could not tell it"
                raise PydanticCustomError("times", what, {"time": time})
