"""`plugins` and `run`: what can be attached, and the engine of what is."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from importlib import import_module
from typing import Any

from console.cli.doors import Doors, PluginInfo
from console.cli.render import Column, Shape, note, print_rows
from console.cli.round import NONE_ANSWERED
from console.core.backend import RunsEngine
from console.core.faults import BackendFault, ConfigFault, ReadOnlyRefused, UsageFault
from console.core.text import instant

FIELDS = ("name", "distribution", "version", "capabilities", "problem")


def list_plugins(args: Namespace, doors: Doors) -> int:
    found = doors.plugins()
    print_rows(found, Shape(FIELDS, _record, _COLUMNS), args.format)
    return 1 if any(plugin.problem for plugin in found) else 0


def _record(plugin: PluginInfo) -> dict[str, Any]:
    return {
        "name": plugin.name, "distribution": plugin.distribution, "version": plugin.version,
        "capabilities": list(plugin.capabilities), "problem": plugin.problem or None,
    }


_COLUMNS: tuple[Column[PluginInfo], ...] = (
    Column("plugin", lambda plugin: plugin.name),
    Column("from", lambda plugin: f"{plugin.distribution} {plugin.version}".strip(), dropped=1),
    Column("capabilities", lambda plugin: ", ".join(plugin.capabilities) or "–"),
    Column("problem", lambda plugin: plugin.problem, least=20, wraps=True),
)


# --- run --------------------------------------------------------------------------------------------


def run_engine(args: Namespace, doors: Doors) -> int:
    desk = doors.desk()
    backend = desk.backend(args.backend)
    if desk.read_only:
        raise ReadOnlyRefused("an engine changes its queue", where=args.backend)
    if not isinstance(backend, RunsEngine):
        raise UsageFault(f"{backend.name} has no engine", fix="`retriage plugins` shows which plugins have one.")
    handler = load_handler(backend.handler, args.backend)

    def log(text: str) -> None:
        note(f"{instant(desk.clock.now().replace(microsecond=0))} {args.backend}: {text}")

    log(f"running with {backend.handler}")
    try:
        executions = backend.run(handler, desk.clock, desk.stop, log)
    except BackendFault as fault:
        note(f"retriage: {args.backend}: {fault}")
        return NONE_ANSWERED
    log(f"stopped after {executions} execution{'' if executions == 1 else 's'}")
    return 0


def load_handler(named: str | None, backend: str) -> Callable[..., object]:
    """The function a config names as `package.module:function`."""
    where = f"backends.{backend}.handler"
    if not named:
        raise ConfigFault("no handler is named", where=where, fix="Add handler: package.module:function.")
    module, colon, function = named.partition(":")
    if not (colon and module and function):
        raise ConfigFault(f"{named!r} is not a handler", where=where, fix="Write package.module:function.")
    try:
        found = getattr(import_module(module), function, None)
    except Exception as error:  # whatever a stranger's module raises while it is imported
        raise ConfigFault(
            f"{module} cannot be imported: {type(error).__name__}: {error}", where=where,
            fix="It must be installed beside Retriage or be on PYTHONPATH.",
        ) from error
    if not callable(found):
        raise ConfigFault(f"{module} has no function {function!r}", where=where)
    return found  # type: ignore[no-any-return]
