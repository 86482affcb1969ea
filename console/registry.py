"""Entry-point names → backends, in three grains: names import nothing, one raises, all never does."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import timedelta
from functools import cache
from importlib.metadata import EntryPoint, PackageNotFoundError, distribution, entry_points
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pydantic import BaseModel

from console.core.desk import Unavailable
from console.core.faults import Fault, PluginFault
from console.core.policy import PolicyOverride
from console.settings import BackendSettings, Settings, mask_text, suggestion

if TYPE_CHECKING:
    from console.core.backend import Backend

GROUP = "retriage.backends"
_EXTRAS = {"psycopg": "postgres", "obstore": "s3"}
_ENOUGH = 300


class Plugin(Protocol):
    """What an entry point in `retriage.backends` names: usually a class with these two."""

    options: type[BaseModel]
    """The backend's own config keys, all but `plugin` and `policy`."""

    def open(
        self, name: str, options: Any, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> Backend:
        """Attach to the place the options name; `policy.over(own)` is its policy. Raises BackendFault."""


class Installed(NamedTuple):
    """A plugin that can be named in config, and the distribution it came with."""

    name: str
    distribution: str
    version: str


def available() -> tuple[Installed, ...]:
    """Every installed plugin, without importing any."""
    return tuple(sorted(_installed(point) for point in _points()))


def load(name: str) -> Plugin:
    """The plugin of that name; a PluginFault says what is wrong with it otherwise."""
    point = _find(name)
    try:
        plugin = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may fail in any way, even by SystemExit
        raise _broken(name, error, "cannot be imported") from error
    options = getattr(plugin, "options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise PluginFault(f"{point.value} has no `options` model", where=name, fix=_told(point))
    if not callable(getattr(plugin, "open", None)):
        raise PluginFault(f"{point.value} has no `open`", where=name, fix=_told(point))
    return cast("Plugin", plugin)


def open_one(backend: BackendSettings, *, read_only: bool, deadline: timedelta) -> Backend:
    """The backend, open; raises a Fault and nothing else but KeyboardInterrupt."""
    plugin = load(backend.plugin)
    options = backend.parse(plugin.options)
    policy = backend.policy.override()
    try:
        return plugin.open(backend.name, options, policy, read_only=read_only, deadline=deadline)
    except (Fault, KeyboardInterrupt):
        raise
    except BaseException as error:  # as above
        raise _broken(backend.plugin, error, "cannot open the backend") from error


def open_all(settings: Settings) -> tuple[Backend | Unavailable, ...]:
    """Every configured backend in config order, open or unavailable."""
    return tuple(open_each(settings))


def open_each(settings: Settings) -> Iterator[Backend | Unavailable]:
    """The same, one after the other: what a later one needs is not loaded before it is its turn."""
    console = settings.console
    for backend in settings.backends:
        try:
            yield open_one(backend, read_only=console.read_only, deadline=console.deadline)
        except Fault as fault:
            yield Unavailable(backend.name, backend.plugin, fault)


def _points() -> Sequence[EntryPoint]:
    return _points_on(tuple(sys.path))


@cache
def _points_on(_path: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Looked for once: it reads a file of every distribution that is installed."""
    return tuple(entry_points(group=GROUP))


def _own() -> Sequence[EntryPoint]:
    """What comes with Retriage itself: one file to read instead of one for every distribution."""
    try:
        return tuple(distribution("retriage").entry_points.select(group=GROUP))
    except PackageNotFoundError:
        return ()


def _find(name: str) -> EntryPoint:
    """No other distribution can take the place of a plugin of ours: it would be handed that backend's secrets."""
    if own := [point for point in _own() if point.name == name]:
        return own[0]
    points = [point for point in _points() if point.name == name]
    if len(points) == 1:
        return points[0]
    if points:
        both = " and ".join(sorted(_installed(point).distribution for point in points))
        raise PluginFault(f"both {both} offer it", where=name, fix="Uninstall one of them.")
    hint = suggestion(name, {point.name for point in _points()})
    raise PluginFault("no such plugin is installed", where=mask_text(name), fix=hint[0].upper() + hint[1:])


def _installed(point: EntryPoint) -> Installed:
    if point.dist is None:
        return Installed(point.name, "unknown", "")
    return Installed(point.name, point.dist.name, point.dist.version)


def _told(point: EntryPoint) -> str:
    return f"Tell the authors of {_installed(point).distribution}."


def _broken(name: str, error: BaseException, what: str) -> Fault:
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    module = str(missing or "").partition(".")[0]
    if extra := _EXTRAS.get(module):
        return PluginFault(f"it needs {module}", where=name, fix=f"Install retriage[{extra}].")
    # Only the first line, masked: an exception's text may quote the URL it was given.
    said = mask_text((str(error).strip().splitlines() or [""])[0])[:_ENOUGH]
    return PluginFault(f"it {what}: {type(error).__name__}{f': {said}' if said else ''}", where=name)
