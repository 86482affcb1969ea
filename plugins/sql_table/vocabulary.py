"""The words of the mapping format: names, SQL, formulas, durations, and sections that may be a single value."""

from __future__ import annotations

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

from console.core.text import parse_duration
from plugins.sql_table.fragments import formula, fragment

MAIN = "job"
"""What the mapped table is called in an expression; a join goes by its own name."""
WRITTEN = frozenset({"key", "now", "due"})
"""The values a statement may use."""

Loc = tuple[str | int, ...]


def _sql(text: str) -> str:
    fragment(text)
    return text


def _statement(text: str) -> str:
    fragment(text, WRITTEN)
    return text


def _write(text: str) -> str:
    if "value" not in fragment(text, frozenset({"value"})).binds:
        raise ValueError("must use :value, which is what is written")
    return text


def _formula(text: str) -> str:
    formula(text)
    return text


def _name(text: str) -> str:
    if not text:
        raise ValueError("a name must not be empty")
    if "\0" in text or len(text) > 255:
        raise ValueError("not the name of anything in a database")
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
Native = str | bool | int
Mapped = Literal["ready", "waiting", "retrying", "running", "failed", "terminal", "done", "cancelled"]
"""What a native status may mean. `ready` is waiting before the first attempt and retrying after it; `failed` is
terminal once the policy says so."""
PARTS: tuple[Mapped, ...] = ("ready", "waiting", "retrying", "running", "failed", "terminal", "done", "cancelled")


def one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names):
        raise ValueError("needs one column, or several different ones")
    return names


Keys = Annotated[
    tuple[Name, ...], BeforeValidator(one_or_more), AfterValidator(_different),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class Short(Part):
    """A section that may also be written as a single value."""

    @classmethod
    def short(cls, value: Any) -> Any:
        return {"column": value} if isinstance(value, str) else value

    @model_validator(mode="before")
    @classmethod
    def _written_short(cls, value: Any) -> Any:
        return cls.short(value)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [*cls.shorts(), handler(schema)]}

    @classmethod
    def shorts(cls) -> list[dict[str, Any]]:
        return [{"type": "string", "description": "a column"}]
