"""A section of the config file, checked against a pydantic model; every mistake knows its line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, get_args

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from console.core.faults import ConfigFault
from console.core.paths import expanded
from console.core.text import did_you_mean
from console.settings.strict_yaml import Loc, Mistake, UnusableConfig, Value, unknown_key
from console.settings.tree import read_tree

Model = TypeVar("Model", bound=BaseModel)

INCLUDABLE = "in_a_file"
"""A field with this key in its `json_schema_extra` may name a file instead of being written out."""

_YAML_1_1_BOOLEAN = re.compile(r"y|n|yes|no|on|off", re.I)
_DIGITS = re.compile(r"[-+]?[0-9][0-9_:.,xo]*", re.I)

_EXPECTED: Mapping[str, str] = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "string": "text",
    "str": "text",
    "list": "a list such as [a, b]",
    "tuple": "a list such as [a, b]",
    "set": "a list such as [a, b]",
    "frozen": "a list such as [a, b]",
    "dict": "a section of key: value lines",
    "mapping": "a section of key: value lines",
    "model": "a section of key: value lines",
    "path": "a path",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


@dataclass(frozen=True, slots=True)
class Section:
    """Plain values and the line of each. Its repr shows no value, since any may be a secret."""

    file: str
    at: Loc
    values: Mapping[str, Value] = field(repr=False)
    lines: Mapping[Loc, int] = field(repr=False)
    files: Mapping[str, Section] = field(default_factory=dict, repr=False)
    """The keys whose value is in a file of its own."""

    def where(self, loc: Loc) -> str:
        """`file:line` of a value, for mistakes that are found later."""
        if loc and (part := self.files.get(str(loc[0]))):
            return part.where(loc[1:])
        line = self._line((*self.at, *loc))
        return f"{self.file}:{line}" if line else self.file

    def parse(self, model: type[Model]) -> Model:
        """The section as that model; raises UnusableConfig with every mistake in it."""
        found, mistakes = self.check(model)
        if found is None:
            raise UnusableConfig(self.file, mistakes)
        return found

    def check(self, model: type[Model]) -> tuple[Model | None, list[Mistake]]:
        """The section as that model, or everything that is wrong with it."""
        known = set(_names(model))
        open_ended = model.model_config.get("extra") == "allow"
        unknown = [] if open_ended else [key for key in self.values if key not in known]
        mistakes = [self.mistake((key,), unknown_key(key, known)) for key in unknown]
        wanted = {key: value for key, value in self.values.items() if key not in unknown}
        try:
            # JSON mode is strict about types, and still accepts what a file can only write as text or a list.
            found = model.model_validate_json(json.dumps(wanted), strict=True, context={"where": self.where})
        except ValidationError as error:
            mistakes += [self._explain(detail) for detail in error.errors(include_url=False)]
            return None, mistakes
        return (None if mistakes else found), mistakes

    def mistake(self, loc: Loc, what: str) -> Mistake:
        full = (*self.at, *loc)
        return Mistake(self._line(full), full, what)

    def _line(self, loc: Loc) -> int:
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 0)

    def _explain(self, error: ErrorDetails) -> Mistake:
        loc = tuple(error["loc"])
        if error["type"] != "missing":
            # pydantic adds parts of its own, such as the branch of a union; the file has only real keys.
            while loc and (*self.at, *loc) not in self.lines:
                loc = loc[:-1]
        return self.mistake(loc, explain(error, self._value(loc)))

    def _value(self, loc: Loc) -> object:
        value: object = self.values
        for part in loc:
            try:
                value = value[part]  # type: ignore[index]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def _names(model: type[BaseModel]) -> Iterator[str]:
    for name, info in model.model_fields.items():
        yield info.alias or name


def explain(error: ErrorDetails, value: object) -> str:
    """A pydantic error in plain words, without the value itself."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "missing":
        return "required, but missing"
    if kind == "extra_forbidden":
        return "unknown key"
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return f"must be {words} {context[bound]}"
    if kind in ("literal_error", "enum"):
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"not an accepted value. {did_you_mean(str(value), choices)}" if choices else error["msg"]
    if kind == "value_error":
        return _without(str(context.get("error", error["msg"])), value)
    stem, _, rest = kind.partition("_")
    if stem in _EXPECTED and ("type" in rest or "parsing" in rest or "from_float" in rest):
        return f"expected {_EXPECTED[stem]}, found {kind_of(value)}{_hint(stem, value)}"
    return error["msg"]


def _without(message: str, value: object) -> str:
    return message.replace(value, "…") if isinstance(value, str) and value else message


def kind_of(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "a section"


def _hint(expected: str, value: object) -> str:
    if expected in ("string", "str"):
        return ". Put it in quotes." if isinstance(value, bool | int | float) else ""
    if not isinstance(value, str):
        return ""
    if expected == "bool" and _YAML_1_1_BOOLEAN.fullmatch(value):
        return ". Write true or false; yes, no, on and off are text here."
    if expected in ("int", "float") and _DIGITS.fullmatch(value):
        return ". Write plain decimal digits without quotes; 12:30, 010 and 0x1f are text here."
    return ""


def include_files(section: Section, model: type[BaseModel]) -> Section:
    """The section with the content of every file it names. Mistakes in such a file name its own lines."""
    values, files = dict(section.values), {}
    for name, info in model.model_fields.items():
        key = info.alias or name
        named, included = values.get(key), _included_model(info)
        if included is None or not isinstance(named, str):
            continue
        path = Path(section.file).parent / expanded(named, ConfigFault, section.where((key,)))
        tree = read_tree(path)
        files[key] = Section(tree.file, (), tree.values, tree.lines)
        files[key].parse(included)
        values[key] = tree.values
    return replace(section, values=values, files=files) if files else section


def _included_model(info: FieldInfo) -> type[BaseModel] | None:
    extra = info.json_schema_extra
    if not isinstance(extra, dict) or not extra.get(INCLUDABLE):
        return None
    kinds = (info.annotation, *get_args(info.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)), None)
