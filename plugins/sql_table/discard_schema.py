"""The discard section of the mapping format: what is written so that the queue never runs an item again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from plugins.sql_table.fragments import fragment
from plugins.sql_table.mapping_types import STATEMENT_VALUES, Name, RowRule, Section, Sql, Statement
from plugins.sql_table.requeue_schema import Assignment, FunctionCall, require_parts, require_times


class DiscardSection(Section):
    """How an item is given up by the rules of its queue. It has the guard of the requeue section."""

    conditions: tuple[Literal["failed", "terminal", "retrying", "stuck"], ...] = ("failed", "retrying", "stuck")
    """Terminal only if the queue itself has a way to close or delete such items."""
    set: Mapping[Name, Assignment] = Field(default_factory=dict)
    """What an UPDATE writes. With a function or statements: what the row contains afterwards."""
    delete: bool = False
    """The row is deleted, so that nothing can be undone. With a function or statements: these delete it."""
    skip: tuple[RowRule, ...] = ()
    """Rows that are never discarded, and why."""
    warn: tuple[RowRule, ...] = ()
    """What a plan warns of."""
    lock: Sql | None = None
    """An expression that must be true for the write; that of the requeue by default."""
    function: FunctionCall | None = None
    statements: tuple[Statement, ...] = ()
    """Run in order for each row, in one transaction. Each must return the rows it changed."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.set) == self.delete:
            raise PydanticCustomError("discard", "give what to set, or delete")
        if self.function is not None and self.statements:
            raise PydanticCustomError("discard", "give either a function or statements")
        if self.delete and any(fragment(text, STATEMENT_VALUES).binds - {"key"} for text in self.statements):
            raise PydanticCustomError("discard", "statements that delete a row can only use :key")
        if any(assigned.time == "due" for assigned in self.set.values()):
            raise PydanticCustomError("discard", "a discarded item is never due; use the time now")
        require_parts(self.set.values(), by_update=self.function is None and not self.statements)
        require_times(self.set, self.function, self.statements)
        return self
