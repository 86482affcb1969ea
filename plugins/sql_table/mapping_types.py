"""The value types of the mapping format: names, SQL, formulas, durations, and sections with a short form."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetJsonSchemaHandler,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from console.core.item import Condition
from console.core.policy import Phase
from console.core.text import parse_duration
from console.sql.table import Meaning
from plugins.sql_table.fragments import formula, fragment

TABLE_ALIAS = "job"
"""The name of the mapped table in expressions. A join has its own name."""
STATEMENT_VALUES = frozenset({"key", "now", "due"})
"""The values that a statement may use."""

Loc = tuple[str | int, ...]


def _sql(text: str) -> str:
    fragment(text)
    return text


def _statement(text: str) -> str:
    if "key" not in fragment(text, STATEMENT_VALUES).binds:
        raise ValueError("must contain :key, or it would write other rows, too")
    return text


def _write(text: str) -> str:
    if "value" not in fragment(text, frozenset({"value"})).binds:
        raise ValueError("must contain :value, the value to write")
    return text


def _formula(text: str) -> str:
    formula(text)
    return text


def _name(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    if "\0" in text or len(text) > 255:
        raise ValueError("is not a valid name in a database")
    return text


def _duration(value: object) -> timedelta:
    try:
        if isinstance(value, str) and (found := parse_duration(value)) > timedelta(0):
            return found
    except ValueError:
        pass
    raise PydanticCustomError("duration", "expected a duration with a unit, such as 30s, 5m, 2h or 30d")


Name = Annotated[str, AfterValidator(_name)]
Sql = Annotated[str, AfterValidator(_sql), WithJsonSchema({"type": "string", "description": "an SQL expression"})]
Statement = Annotated[
    str, AfterValidator(_statement), WithJsonSchema({"type": "string", "description": "one SQL statement"})
]
WriteSql = Annotated[str, AfterValidator(_write)]
FormulaText = Annotated[str, AfterValidator(_formula)]
Duration = Annotated[timedelta, PlainValidator(_duration), WithJsonSchema({"type": "string", "examples": ["5m"]})]
Scalar = str | bool | int
ConditionKey = Literal["ready", "waiting", "retrying", "running", "failed", "terminal", "done", "cancelled"]
"""The keys for native statuses. `ready` is waiting before the first attempt and retrying after it. `failed` becomes
terminal when the policy allows no more attempts."""
MEANINGS: Mapping[ConditionKey, Meaning] = {
    "ready": Phase.READY,
    "waiting": Condition.WAITING,
    "retrying": Condition.RETRYING,
    "running": Phase.RUNNING,
    "failed": Phase.FAILED,
    "terminal": Condition.TERMINAL,
    "done": Phase.DONE,
    "cancelled": Phase.CANCELLED,
}


def as_tuple(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names):
        raise ValueError("needs one column or several different columns")
    return names


Keys = Annotated[
    tuple[Name, ...], BeforeValidator(as_tuple), AfterValidator(_different),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class Section(BaseModel):
    """A section of a mapping."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class RowRule(Section):
    """What is special about some rows, as a sentence. The first rule that is true counts."""

    when: Sql
    why: Name


class ShorthandSection(Section):
    """A section that can also be written as a single value."""

    @classmethod
    def expand(cls, value: Any) -> Any:
        """The section for its short form."""
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _expand(cls, value: Any) -> Any:
        return cls.expand(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [*cls.short_forms(), handler(schema)]}

    @classmethod
    def short_forms(cls) -> list[dict[str, Any]]:
        """The JSON Schemas of the short forms."""
        return [{"type": "string", "description": "a column"}]
