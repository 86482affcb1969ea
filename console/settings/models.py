"""The keys of the configuration and their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    WithJsonSchema,
    model_validator,
)
from pydantic_core import PydanticCustomError

from console.actions.themes import checked_theme
from console.core.faults import ConfigFault, QueryFault
from console.core.policy import Backoff, Exponential, FixedDelays, PolicyOverride
from console.core.query import Filter
from console.core.text import parse_duration
from console.settings.section import Section
from console.xdg import state_folder

_DATABASE = re.compile(r"(?:sqlite|postgres(?:ql)?)(?:\+\w+)?://.+", re.S)
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        try:
            if (found := parse_duration(value)) >= timedelta(0):
                return found
        except ValueError:
            pass
    raise PydanticCustomError("duration", "expected a duration with a unit, such as 30s, 5m, 2h or 30d")


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise PydanticCustomError("positive", "must be longer than zero")
    return value


def _share(value: object) -> float:
    if isinstance(value, str) and (match := _PERCENT.fullmatch(value.strip())):
        value = float(match[1]) / 100
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1:
        return float(value)
    raise PydanticCustomError("share", "expected a share from 0 to 1, or a percentage such as 20%")


def _anchor(value: object) -> Path | Literal["syslog"] | None:
    if value is None or value == "syslog":
        return value
    if isinstance(value, str | Path) and Path(value).is_absolute():
        return Path(value)
    raise PydanticCustomError("anchor", "expected syslog, or the full path of a file (~/ is fine)")


def _database(value: SecretStr) -> SecretStr:
    if not _DATABASE.fullmatch(value.get_secret_value()):
        raise PydanticCustomError("database", "expected sqlite:///PATH or postgresql://USER@HOST/DATABASE")
    return value


def _web_address(value: str) -> str:
    if not value.startswith(("https://", "http://")):
        raise PydanticCustomError("web", "expected a web address that starts with https://")
    return value


def _not_blank(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("blank", "must not be empty, since it would match everything")
    return value


def _named(value: str) -> str:
    if not value.strip():
        raise PydanticCustomError("unnamed", "needs a name")
    return value


def _query(value: str) -> str:
    """The message may quote the filter: a saved view is not secret."""
    try:
        Filter.parse(value)
    except QueryFault as fault:
        raise PydanticCustomError("query", "{said}", {"said": str(fault)}) from None
    return value


def _theme(value: str) -> str:
    try:
        return checked_theme(value)
    except ConfigFault as fault:
        raise PydanticCustomError("theme", "{what}. {fix}", {"what": fault.detail, "fix": fault.fix}) from None


def _freeze(value: dict[str, str]) -> Mapping[str, str]:
    return MappingProxyType(value)


Duration = Annotated[
    timedelta, PlainValidator(_duration), WithJsonSchema({"type": "string", "examples": ["5m"]})
]
Positive = Annotated[Duration, AfterValidator(_positive)]
Share = Annotated[float, PlainValidator(_share), WithJsonSchema({"type": ["number", "string"]})]
Anchor = Annotated[
    Path | Literal["syslog"] | None, PlainValidator(_anchor), WithJsonSchema({"type": ["string", "null"]})
]
Pattern = Annotated[str, AfterValidator(_not_blank)]
WebAddress = Annotated[str, AfterValidator(_web_address)]
Name = Annotated[str, AfterValidator(_named)]
Query = Annotated[str, AfterValidator(_query)]
_Frozen = (AfterValidator(_freeze), PlainSerializer(dict, return_type=dict[str, str]))
Texts = Annotated[Mapping[str, str], *_Frozen]


def _nothing() -> Mapping[str, str]:
    return MappingProxyType({})


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class ConsoleSettings(_Model):
    """The `console:` section."""

    operator: str = ""
    read_only: bool = False
    refresh: Positive = timedelta(seconds=5)
    load: Share = 0.01
    confirm_from: int = Field(default=20, ge=1)
    max_items: int = Field(default=10_000, ge=1)
    trail: Annotated[SecretStr, AfterValidator(_database)] | None = None
    anchor: Anchor = None
    canary_failure_limit: Share = 0.2
    canary_deadline: Positive = timedelta(minutes=15)
    chunk_target: Positive = timedelta(milliseconds=50)
    deadline: Positive = timedelta(seconds=5)
    theme: Annotated[str, AfterValidator(_theme)] | None = None
    views: Annotated[Mapping[Name, Query], *_Frozen] = Field(default_factory=_nothing)
    runbooks: Annotated[Mapping[str, WebAddress], *_Frozen] = Field(default_factory=_nothing)
    keymap: Texts = Field(default_factory=_nothing)

    def trail_url(self) -> str:
        """The trail's URL: the configured one, or a file in the XDG state folder."""
        return self.trail.get_secret_value() if self.trail else f"sqlite:///{state_folder() / 'trail.db'}"


class PolicySettings(_Model):
    """A backend's `policy:` section: where the policy differs from the system's own."""

    max_attempts: int | None = Field(default=None, ge=0)
    delays: tuple[Duration, ...] | None = Field(default=None, min_length=1)
    base: Duration | None = None
    multiplier: float | None = Field(default=None, gt=0)
    cap: Duration | None = None
    jitter: Share | None = None
    retryable: bool | None = None
    max_age: Positive | None = None
    stuck_after: Positive | None = None
    recoverable: tuple[Pattern, ...] | None = None
    unrecoverable: tuple[Pattern, ...] | None = None

    @model_validator(mode="after")
    def _one_backoff(self) -> Self:
        growing = [
            name for name in ("base", "multiplier", "cap", "jitter") if getattr(self, name) is not None
        ]
        if self.delays is not None and growing:
            what = "delays and {name} cannot be used together. Keep either delays, or base, multiplier and cap."
            raise PydanticCustomError("two_backoffs", what, {"name": growing[0]})
        if growing and self.base is None:
            raise PydanticCustomError("no_base", "{name} needs base, which is the first delay", {"name": growing[0]})
        return self

    def override(self) -> PolicyOverride:
        """The configured values, for a plugin to apply over its system's own policy."""
        return PolicyOverride(
            max_attempts=self.max_attempts,
            backoff=self._backoff(),
            retryable=self.retryable,
            max_age=self.max_age,
            stuck_after=self.stuck_after,
            recoverable=self.recoverable,
            unrecoverable=self.unrecoverable,
        )

    def _backoff(self) -> Backoff | None:
        if self.delays is not None:
            return FixedDelays(self.delays)
        if self.base is None:
            return None
        multiplier = 2.0 if self.multiplier is None else self.multiplier
        return Exponential(self.base, multiplier, self.cap, self.jitter or 0.0)


Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class BackendSettings:
    """One backend: its plugin, its policy, and the keys that only the plugin knows."""

    name: str
    plugin: str
    policy: PolicySettings
    options: Section
    read_only: bool = False
    """This backend cannot be changed, whatever the console may do elsewhere."""

    def parse(self, model: type[Options]) -> Options:
        """The plugin's own keys as its model; raises a ConfigFault with file, line and key of every mistake."""
        from console.settings.section import include_files

        return include_files(self.options, model).parse(model)


@dataclass(frozen=True, slots=True)
class Settings:
    """The whole configuration, checked."""

    path: Path | None
    console: ConsoleSettings
    backends: tuple[BackendSettings, ...]

    @property
    def read_only_backends(self) -> frozenset[str]:
        return frozenset(backend.name for backend in self.backends if backend.read_only)

    def as_read_only(self) -> Settings:
        return replace(self, console=self.console.model_copy(update={"read_only": True}))
