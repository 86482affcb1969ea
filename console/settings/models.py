"""The keys of the configuration and their defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self, TypeVar
from urllib.parse import urlsplit

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
from console.core.access import AccessRules
from console.core.alert_rules import Rule, RuleKind
from console.core.faults import ConfigFault, QueryFault
from console.core.policy import Backoff, Exponential, FixedDelays, PolicyOverride
from console.core.query import Filter
from console.core.text import did_you_mean, parse_duration
from console.settings.section import Section
from console.xdg import state_folder

_DATABASE = re.compile(r"(?:sqlite|postgres(?:ql)?)(?:\+\w+)?://.+", re.S)
_TIMES = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*x")
_STORM = re.compile(r"([0-9]{1,9})\s+within\s+(\S+)")
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


class StrictModel(BaseModel):
    """A part of the config: frozen, without unknown keys, and its errors quote no value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, defer_build=True)


class ConsoleSettings(StrictModel):
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
    watch_for: Positive = timedelta(hours=1)
    chunk_target: Positive = timedelta(milliseconds=50)
    deadline: Positive = timedelta(seconds=5)
    theme: Annotated[str, AfterValidator(_theme)] | None = None
    notify: bool = True
    views: Annotated[Mapping[Name, Query], *_Frozen] = Field(default_factory=_nothing)
    runbooks: Annotated[Mapping[str, WebAddress], *_Frozen] = Field(default_factory=_nothing)
    keymap: Texts = Field(default_factory=_nothing)

    def trail_url(self) -> str:
        """The trail's URL: the configured one, or a file in the XDG state folder."""
        return self.trail.get_secret_value() if self.trail else f"sqlite:///{state_folder() / 'trail.db'}"

    def views_file(self) -> Path:
        """Where the console saves views: beside a trail that is a file, else in the XDG state folder."""
        scheme, _, path = self.trail_url().partition(":///")
        return (Path(path).parent if scheme == "sqlite" and path else state_folder()) / "views.json"


class HistorySettings(StrictModel):
    """The `history:` section."""

    url: Annotated[SecretStr, AfterValidator(_database)] | None = None
    errors: bool = True
    """Keep the beginning of one error of each cause."""
    record: bool = True
    """Let the open console record samples when no other process does."""

    def store_url(self) -> str:
        """The history's URL: the configured one, or a file in the XDG state folder."""
        return self.url.get_secret_value() if self.url else f"sqlite:///{state_folder() / 'history.db'}"


def _argument(value: str) -> str:
    if "\0" in value:
        raise PydanticCustomError("argument", "an argument cannot contain NUL")
    return value


def _https(value: SecretStr) -> SecretStr:
    try:
        parts = urlsplit(value.get_secret_value())
        plain = parts.scheme == "https" and bool(parts.hostname) and parts.username is None and parts.port != 0
    except ValueError:
        plain = False
    if not plain or not value.get_secret_value().isascii() or any(char <= " " for char in value.get_secret_value()):
        raise PydanticCustomError("https", "expected a web address that starts with https://, without a user name")
    return value


def _header(value: SecretStr) -> SecretStr:
    if any(char in "\r\n\0" for char in value.get_secret_value()) or not value.get_secret_value().isascii():
        raise PydanticCustomError("header", "the value of a header must be one line of ASCII text")
    return value


def _growth(value: object) -> float:
    if isinstance(value, str) and (match := _TIMES.fullmatch(value)) and float(match[1]) > 1:
        return float(match[1])
    raise PydanticCustomError("growth", "expected a factor above 1, such as 3x")


def _storm(value: object) -> tuple[int, timedelta]:
    if isinstance(value, str) and (match := _STORM.fullmatch(value.strip())):
        with suppress(ValueError):
            count, within = int(match[1]), parse_duration(match[2])
            if count and timedelta(0) < within <= timedelta(hours=1):
                return count, within
    raise PydanticCustomError("storm", "expected a number and a time of at most 1h, such as 200 within 15m")


Growth = Annotated[float, PlainValidator(_growth), WithJsonSchema({"type": "string", "examples": ["3x"]})]
Storm = Annotated[
    tuple[int, timedelta], PlainValidator(_storm), WithJsonSchema({"type": "string", "examples": ["200 within 15m"]})
]


class HookSettings(StrictModel):
    """One of the `alerts.hooks:`."""

    command: tuple[Annotated[str, AfterValidator(_argument)], ...] | None = Field(default=None, min_length=1)
    webhook: Annotated[SecretStr, AfterValidator(_https)] | None = None
    headers: Mapping[Name, Annotated[SecretStr, AfterValidator(_header)]] = Field(default_factory=dict)
    timeout: Positive = timedelta(seconds=10)
    retries: int = Field(default=3, ge=0, le=10)

    @model_validator(mode="after")
    def _one_target(self) -> Self:
        if (self.command is None) == (self.webhook is None):
            raise PydanticCustomError("target", "needs either a command or a webhook")
        return self


class RuleSettings(StrictModel):
    """One of the `alerts.rules:`: what to alert of, for how long it must hold, and how often it is sent."""

    new_cause: int | None = Field(default=None, ge=1)
    cause_grows: Growth | None = None
    storm_ahead: Storm | None = None
    unreachable: Positive | None = None
    override_stopped: Literal[True] | None = None
    trail_broken: Literal[True] | None = None
    lasting: Duration | None = Field(default=None, alias="for")
    quiet: Duration | None = None
    hooks: tuple[Name, ...] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        kinds = [kind.value for kind in RuleKind]
        if sum(getattr(self, kind) is not None for kind in kinds) != 1:
            raise PydanticCustomError("rule", "needs exactly one of {kinds}", {"kinds": ", ".join(kinds)})
        return self

    def rule(self, quiet: timedelta) -> Rule:
        """The rule, with the section's quiet time unless it has its own."""
        kind = next(kind for kind in RuleKind if getattr(self, kind.value) is not None)
        ahead = self.storm_ahead or (0, timedelta(0))
        return Rule(
            kind, self.new_cause or ahead[0], self.cause_grows or 0.0, ahead[1],
            max(self.lasting or timedelta(0), self.unreachable or timedelta(0)),
            quiet if self.quiet is None else self.quiet, self.hooks,
        )


class AlertSettings(StrictModel):
    """The `alerts:` section."""

    quiet: Duration = timedelta(hours=1)
    rules: tuple[RuleSettings, ...] = ()
    overrides: tuple[Name, ...] = ()
    """The hooks that are called when an override ends, stops or is taken over, and when its watch ends."""
    hooks: Mapping[Name, HookSettings] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _known_hooks(self) -> Self:
        for name in chain(self.overrides, *(rule.hooks or () for rule in self.rules)):
            if name not in self.hooks:
                known = did_you_mean(name, self.hooks)
                what = "there is no hook '{name}'. {known}"
                raise PydanticCustomError("hook", what, {"name": name, "known": known})
        return self


class PolicySettings(StrictModel):
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
    history: HistorySettings = field(default_factory=HistorySettings)
    alerts: AlertSettings = field(default_factory=AlertSettings)
    access: AccessRules = field(default_factory=AccessRules)

    @property
    def read_only_backends(self) -> frozenset[str]:
        return frozenset(backend.name for backend in self.backends if backend.read_only)

    def as_read_only(self) -> Settings:
        return replace(self, console=self.console.model_copy(update={"read_only": True}))
