"""Finds the queues behind a URL, and adds them to a config file. Every plugin that knows such URLs is asked."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from console.core.backend import Backend, Count
from console.core.capabilities import Discovers, FoundQueue
from console.core.faults import BackendFault, Fault, PluginFault, UsageFault, sentences
from console.core.item import Condition
from console.core.policy import PolicyOverride
from console.core.query import Filter
from console.registry import available, load
from console.settings import loads

if TYPE_CHECKING:
    from console.settings import Settings

_INDENT = "  "


class Attachable(NamedTuple):
    """A queue that was found, with a free name, what needs attention in it, and its config section."""

    name: str
    plugin: str
    system: str
    options: Mapping[str, Any]
    counts: Mapping[Condition, Count] | None
    """None if they could not be read; the note says why."""
    note: str = ""
    attached_as: str | None = None
    """The name of the backend that has it already."""


class Attachables(NamedTuple):
    """What was found, and the faults of plugins that could not look."""

    queues: tuple[Attachable, ...]
    faults: tuple[Fault, ...]
    read_only: bool = False
    """Whether the config that they would be added to says so."""


def scheme_of(url: str) -> str:
    return url.partition(":")[0].partition("+")[0].lower() if "://" in url else "file"


def find_queues(url: str, settings: Settings | None, deadline: timedelta, *, written: str) -> Attachables:
    """Ask every plugin that knows such URLs. The same fault of several plugins is reported once.

    `written` is the URL as it belongs in the config: with `${NAME}` for a password.
    """
    offered: list[tuple[str, Any, FoundQueue]] = []
    faults: dict[str, Fault] = {}
    schemes: set[str] = set()
    taken = {} if settings is None else {backend.name: backend for backend in settings.backends}
    for plugin in dict.fromkeys(one.name for one in available() if not one.problem):
        try:
            kind = load(plugin)
            if not isinstance(kind, Discovers):
                continue
            schemes.update(kind.schemes)
            if scheme_of(url) not in kind.schemes:
                continue
            offered += [(plugin, kind, queue) for queue in kind.discover(url, deadline=deadline)]
        except Fault as fault:
            if not isinstance(fault, PluginFault) or _may_need(fault, url):
                faults.setdefault(f"{type(fault).__name__} {fault.detail}", fault)
    if not faults and scheme_of(url) not in schemes:
        listed = ", ".join(f"{scheme}://" for scheme in sorted(schemes - {"file"}))
        raise UsageFault(f"No plugin reads {scheme_of(url)}:// URLs", fix=f"These are known: {listed}.")
    recognised = [one for one in offered if not one[2].guessed]
    found: list[Attachable] = []
    for plugin, kind, queue in recognised or offered:
        same = [name for name, backend in taken.items() if _is_same(backend, plugin, queue.options)]
        name = _free(queue.name, [*taken, *(one.name for one in found)])
        counts, note = ({}, queue.note) if same else _counted(kind, name, queue, deadline)
        options = {key: written if value == url else value for key, value in queue.options.items()}
        found.append(Attachable(name, plugin, queue.system, options, counts, note, same[0] if same else None))
    return Attachables(tuple(found), tuple(faults.values()), settings is not None and settings.console.read_only)


def _may_need(fault: PluginFault, url: str) -> bool:
    """Whether a plugin that cannot be loaded may be the one for this URL: its driver is not installed."""
    return any(driver in fault.detail and scheme_of(url) in schemes for driver, schemes in _DRIVERS.items())


_DRIVERS = {
    "redis": ("redis", "rediss", "unix"), "psycopg": ("postgresql", "postgres"), "pymysql": ("mysql", "mariadb"),
}


def _is_same(backend: Any, plugin: str, options: Mapping[str, Any]) -> bool:
    configured = backend.options.values
    return backend.plugin == plugin and all(configured.get(key) == value for key, value in options.items())


def _free(wanted: str, taken: Collection[str]) -> str:
    numbered = (wanted if n == 1 else f"{wanted}-{n}" for n in range(1, len(taken) + 2))
    return next(name for name in numbered if name not in taken)


def _counted(
    plugin: Any, name: str, queue: FoundQueue, deadline: timedelta
) -> tuple[Mapping[Condition, Count] | None, str]:
    """The counts of a queue, and what to say about it. A queue that cannot be counted now can still be attached."""
    options = plugin.options.model_validate(dict(queue.options))
    backend: Backend = plugin.open(name, options, PolicyOverride(), read_only=True, deadline=deadline)
    try:
        return backend.counts(Filter.parse(""), backend.now()), queue.note
    except BackendFault as fault:
        said = sentences(fault.message, fault.fix)
        return None, f"{queue.note} {said}".strip()
    finally:
        backend.close()


# --- the config section -----------------------------------------------------------------------------------------------


def section(queues: Iterable[Attachable]) -> str:
    """The lines below `backends:` that attach these queues."""
    lines = []
    for queue in queues:
        values = {"plugin": queue.plugin, **queue.options}
        if any(isinstance(value, Mapping) for value in values.values()):
            text = yaml.safe_dump({queue.name: values}, sort_keys=False, allow_unicode=False, width=110)
            lines += [f"{_INDENT}{line}" for line in text.splitlines()]
        else:
            flow = yaml.safe_dump(values, default_flow_style=True, sort_keys=False, allow_unicode=False, width=100_000)
            lines.append(f"{_INDENT}{queue.name}: {flow.strip()}")
    return "\n".join(lines) + "\n"


def with_section(config: str, added: str) -> str | None:
    """The config with the section at its end; None where that would not simply add the backends."""
    before = _tree(config)
    if before is None:
        return None
    ends = config if not config or config.endswith("\n") else f"{config}\n"
    new = ends + added if before.get("backends") else f"{ends}backends:\n{added}"
    more = (_tree(f"backends:\n{added}") or {})["backends"]
    wanted = {**before, "backends": {**(before.get("backends") or {}), **more}}
    if _tree(new) != wanted or ("backends" in before and not before["backends"]):
        return None
    try:
        loads(new)
    except Fault:
        return None
    return new


def _tree(text: str) -> dict[str, Any] | None:
    with suppress(yaml.YAMLError, RecursionError):
        found = yaml.safe_load(text) if text.strip() else {}
        if found is None:
            return {}
        return found if isinstance(found, dict) else None
    return None


def add_to_config(path: Path, queues: Sequence[Attachable]) -> bool:
    """Write the section into the config file, which may not exist yet. False where a person has to do it."""
    added = section(queues)
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    new = with_section(old, added)
    if new is None:
        return False
    target = Path(os.path.realpath(path))  # a link stays a link
    try:
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile("w", encoding="utf-8", dir=target.parent, prefix=".config-", delete=False) as file:
            file.write(new)
            file.flush()
            os.fsync(file.fileno())
        Path(file.name).chmod(stat.S_IMODE(target.stat().st_mode) if target.exists() else 0o600)
        if (target.read_text(encoding="utf-8") if target.exists() else "") != old:
            Path(file.name).unlink()
            raise UsageFault(f"{path} was changed in the meantime", fix="Run the command again.")
        Path(file.name).replace(target)
    except OSError as error:
        raise UsageFault(f"Cannot write {path}: {error.strerror}", fix="Add the lines yourself.") from None
    return True
