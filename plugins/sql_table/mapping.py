"""The mapping format: which columns of which table play which part, and what a requeue writes.

Identifiers are quoted by the dialect and checked against the attached database, values are bound. SQL is allowed
in the fields declared as `Sql` and nowhere else. The same models make the JSON Schema that ships for editors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    PlainValidator,
    PrivateAttr,
    ValidationInfo,
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
Where = Callable[[Loc], str]
"""Where in the files a part of the mapping stands, as `file:line`."""


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


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


def _different(names: tuple[str, ...]) -> tuple[str, ...]:
    if not names or len(set(names)) < len(names):
        raise ValueError("needs one column, or several different ones")
    return names


Keys = Annotated[
    tuple[Name, ...], BeforeValidator(_one_or_more), AfterValidator(_different),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]


class _Part(BaseModel):
    model_config = ConfigDict(
        extra="forbid", frozen=True, hide_input_in_errors=True, use_attribute_docstrings=True, protected_namespaces=()
    )


class _Short(_Part):
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


class Source(_Short):
    """A column, by its name (`alias.column` for a join's), or an expression."""

    column: Name | None = None
    expression: Sql | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        if (self.column is None) == (self.expression is None):
            raise PydanticCustomError("source", "name a column, or an expression, not both and not neither")
        return self


class Limit(_Short):
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
    message: Annotated[tuple[Name, ...], BeforeValidator(_one_or_more)] = ()
    """The keys that make the message, joined by ": "; the whole value where none of them is there."""


class Case(_Part):
    """One of an ordered list of predicates; the first that holds decides."""

    condition: Mapped
    when: Sql
    name: Name | None = None
    """What is shown as native status; the condition's name unless given."""

    @property
    def shown(self) -> str:
        return self.name or self.condition


class Status(_Part):
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
        if len(set(map(repr, listed))) < len(listed):
            raise PydanticCustomError("status", "a native value has two conditions; keep one")
        names = [case.shown for case in self.cases]
        if len(set(names)) < len(names):
            raise PydanticCustomError("status", "two cases have the same name; give each its own")
        return self


class Join(_Part):
    """Another table with at most one row for each of ours."""

    table: Name
    schema_: Name | None = Field(None, alias="schema")
    match: Mapping[Name, Name] = Field(min_length=1)
    """Its column → our column."""


class History(_Part):
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


class Assigned(_Short):
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


class Effect(_Part):
    """What a requeue does to the attempts that are left, told in the plan, and what it writes for that."""

    effect: Literal["headroom", "plus_one", "last_try", "reset"]
    """headroom: the maximum is raised so that one more try fits; plus_one: the requeue itself counts as an
    attempt; last_try: the counter stays and it dies after one more try; reset: the counter starts again."""
    set: Mapping[Name, Assigned] = Field(default_factory=dict)


class Budgets(_Part):
    """The budgets this system can be given."""

    keep: Effect | None = None
    fresh: Effect | None = None

    @model_validator(mode="after")
    def _some(self) -> Self:
        if self.keep is None and self.fresh is None:
            raise PydanticCustomError("budgets", "give keep, fresh, or both")
        return self


Argument = Literal["key", "keys", "now", "due"] | int | None


class FunctionCall(_Part):
    """A stored function of the system itself, called once for each row."""

    name: Name
    schema_: Name | None = Field(None, alias="schema")
    arguments: tuple[Argument, ...] | Mapping[Name, Argument] = ()
    """In order, or by name: key (of the row), keys (the same as an array), now, due, a number, null."""


class BlockedWhen(_Part):
    """Rows a requeue must leave alone, and why."""

    when: Sql
    why: Name


class Requeue(_Part):
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
        known = {*self.guard, *self.set}
        for rule in rules:
            for name, assigned in {**self.set, **rule.set}.items():
                unknown = formula(assigned.formula).names - known - {name} if assigned.formula else set()
                if unknown:
                    what = "the formula of {name} uses {column}, which is not in guard"
                    raise PydanticCustomError("formula", what, {"name": name, "column": min(unknown)})
        return self


class TableMapping(_Part):
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


class Options(_Part):
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
