"""Finds plugins by entry point and opens the configured backends.

`available` imports no plugin, `open_one` raises a Fault, and `open_all` never raises.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from functools import cache
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, cast

from pydantic import BaseModel

from console import __version__
from console.core.capabilities import KeepsIndex
from console.core.entry_points import origin_of, points_in
from console.core.faults import Fault, PluginFault
from console.core.policy import PolicyOverride
from console.core.session import Unavailable
from console.core.text import and_list, did_you_mean
from console.settings import BackendSettings, Settings, mask_text
from console.xdg import cache_folder

if TYPE_CHECKING:
    from console.core.backend import Backend

GROUP = "retriage.backends"
OWN: Mapping[str, str] = {
    "sqlite_queue": "plugins.sqlite_queue:SqliteQueue",
    "file_queue": "plugins.file_queue:FileQueue",
    "partition_store": "plugins.partition_store:PartitionStore",
    "postgres_analyses": "plugins.postgres_analyses:PostgresAnalyses",
    "workflow_steps": "plugins.workflow_steps:WorkflowSteps",
    "sql_table": "plugins.sql_table:SqlTable",
    "rq": "plugins.rq:RqQueues",
    "sidekiq": "plugins.sidekiq:SidekiqQueues",
    "bullmq": "plugins.bullmq:BullMq",
    "celery": "plugins.celery:CeleryResults",
}
"""The plugins that come with Retriage. They are not looked up among the installed distributions: another one could
claim to be Retriage, and would receive the secrets of the backends."""
_US = "retriage"
_EXTRAS = {"psycopg": "postgres", "pymysql": "mysql", "obstore": "s3", "redis": "redis"}
_LONGEST_MESSAGE = 300


class Plugin(Protocol):
    """What an entry point in `retriage.backends` names: usually a class with these two attributes."""

    options: type[BaseModel]
    """The backend's own config keys: all but `plugin` and `policy`."""

    def open(
        self, name: str, options: Any, policy: PolicyOverride, *, read_only: bool, deadline: timedelta
    ) -> Backend:
        """Open the backend that the options describe; its policy is `policy.over(own)`. Raises BackendFault."""


class Installed(NamedTuple):
    """A plugin that a config can name, and the distribution it came with."""

    name: str
    distribution: str
    version: str
    problem: str = ""


def available() -> tuple[Installed, ...]:
    """Every installed plugin, without importing any. A foreign one with a name of ours is listed with that problem."""
    own = [Installed(name, _US, __version__) for name in OWN]
    foreign = [_installed(point) for point in _points() if OWN.get(point.name) != point.value]
    return tuple(sorted([*own, *map(_with_problem, foreign)]))


def _with_problem(found: Installed) -> Installed:
    if found.name in OWN:
        return found._replace(problem="It has the name of a plugin of Retriage and is not used. Uninstall it.")
    if found.distribution.lower() == _US:
        return found._replace(problem="It claims to come with Retriage and does not. Uninstall it.")
    return found


def load(name: str) -> Plugin:
    """The plugin with this name; raises a PluginFault when it is missing or broken."""
    point = _find(name)
    try:
        plugin = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a plugin may raise anything, even SystemExit
        raise _broken(name, error, "imported") from error
    options = getattr(plugin, "options", None)
    if not (isinstance(options, type) and issubclass(options, BaseModel)):
        raise PluginFault(f"{point.value} has no `options` model", where=name, fix=_report_to_authors(point))
    if not callable(getattr(plugin, "open", None)):
        raise PluginFault(f"{point.value} has no `open`", where=name, fix=_report_to_authors(point))
    return cast("Plugin", plugin)


def open_one(backend: BackendSettings, *, read_only: bool, deadline: timedelta) -> Backend:
    """Open a backend. Raises only Fault and KeyboardInterrupt."""
    plugin = load(backend.plugin)
    options = backend.parse(plugin.options)
    policy = backend.policy.override()
    try:
        opened = plugin.open(backend.name, options, policy, read_only=read_only, deadline=deadline)
        if isinstance(opened, KeepsIndex):
            opened.keep_index(cache_folder())
        return opened
    except (Fault, KeyboardInterrupt):
        raise
    except BaseException as error:  # as above
        raise _broken(backend.plugin, error, "opened") from error


def open_all(settings: Settings) -> tuple[Backend | Unavailable, ...]:
    """Every configured backend in the config's order, open or unavailable."""
    return tuple(open_each(settings))


def open_each(settings: Settings) -> Iterator[Backend | Unavailable]:
    """The same, one at a time: the libraries of a later backend are not loaded earlier."""
    console = settings.console
    for backend in settings.backends:
        try:
            read_only = console.read_only or backend.read_only
            yield open_one(backend, read_only=read_only, deadline=console.deadline)
        except Fault as fault:
            yield Unavailable(backend.name, backend.plugin, fault)


def _points() -> Sequence[EntryPoint]:
    return _points_on(tuple(sys.path))


@cache
def _points_on(_path: tuple[str, ...]) -> Sequence[EntryPoint]:
    """Cached, because it reads a file of every installed distribution."""
    return points_in(GROUP)


def _find(name: str) -> EntryPoint:
    """The entry point with this name. Retriage's own plugins come first."""
    if name in OWN:
        return EntryPoint(name, OWN[name], GROUP)
    points = [point for point in _points() if point.name == name]
    if len(points) == 1:
        return points[0]
    if points:
        both = and_list(sorted(_installed(point).distribution for point in points))
        raise PluginFault(f"Both {both} provide this plugin", where=name, fix="Uninstall one of them.")
    known = {*OWN, *(point.name for point in _points())}
    raise PluginFault("No such plugin is installed", where=mask_text(name), fix=did_you_mean(name, known))


def _installed(point: EntryPoint) -> Installed:
    return Installed(point.name, *origin_of(point))


def _report_to_authors(point: EntryPoint) -> str:
    return f"Report this to the authors of {_installed(point).distribution}."


def _broken(name: str, error: BaseException, done: str) -> Fault:
    missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
    module = str(missing or "").partition(".")[0]
    if extra := _EXTRAS.get(module):
        return PluginFault(f"The plugin needs {module}", where=name, fix=f"Install retriage[{extra}].")
    # Only the first line, masked: an exception may quote the URL it was given.
    text = mask_text((str(error).strip().splitlines() or [""])[0])[:_LONGEST_MESSAGE]
    detail = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return PluginFault(f"The plugin cannot be {done}: {detail}", where=name)
