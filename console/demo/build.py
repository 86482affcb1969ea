"""Builds the demo: a folder with the store of every system, and the config that opens them.

A new plugin adds one module with its `SYSTEMS` and one line to `SYSTEMS` here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.cli.context import DemoOptions, ReportProgress
from console.core.faults import ReadOnlyRefused, UsageFault
from console.core.paths import expanded
from console.core.text import duration
from console.demo import analyses, fulfilment, jobs, mail, payments, thumbnails, warehouse, webhooks
from console.demo.child_process import child_process
from console.demo.folder import DemoFolder
from console.demo.past import build_past
from console.demo.redis_server import DemoRedis, RedisFault
from console.demo.server import start_server
from console.demo.system import BuildContext, sizes
from console.xdg import state_folder

SYSTEMS = (
    *payments.SYSTEMS, *jobs.SYSTEMS, *mail.SYSTEMS, *analyses.SYSTEMS, *fulfilment.SYSTEMS, *warehouse.SYSTEMS,
    *webhooks.SYSTEMS,
)

SCALE, SEED, SPEED = 2_000, 1, 12
AGES_AFTER = timedelta(minutes=25)
"""A demo older than this is rebuilt: its storm of retries is over, or nearly so."""
_SMALLEST = 100
_CONFIG, _TRAIL, _ANCHORS, _HISTORY = "config.yaml", "trail.db", "anchors", "history.db"
_VERSION = 7
_CONSOLE: Mapping[str, Any] = {
    "operator": "${USER:-}",
    "refresh": "2s",
    "views": {
        "storm": "condition:retrying next<1h",
        "hopeless": "condition:terminal recoverable:no",
        "odd": "key:*odd* condition:*",
    },
    "runbooks": {
        "429 too many requests": "https://wiki.example/runbooks/rate-limit",
        "invalid api key": "https://wiki.example/runbooks/rotate-keys",
        "does not exist": "https://wiki.example/runbooks/schema-change",
    },
}

@dataclass(frozen=True, slots=True)
class State:
    """What a built demo stores about itself; `ready` when it is complete."""

    scale: int
    seed: int
    speed: int
    base: str
    postgres: bool = False
    redis: bool = False
    ready: bool = False
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class BuiltDemo:
    """A built demo. The first process that opens it owns it: no other may rebuild it or run its workers."""

    config: Path
    speed: int
    owned: bool
    message: str = ""

    def start_workers(self, stack: ExitStack) -> None:
        """Run the systems' own workers until `stack` is closed or this process ends."""
        if self.owned:
            stack.enter_context(child_process("console.demo.workers", [str(self.config), str(self.speed)]))


def open_demo(
    options: DemoOptions, progress: ReportProgress, stack: ExitStack, base: datetime | None = None
) -> BuiltDemo:
    """The demo in this folder, built if there is none yet or it is too old; by default in the XDG state folder.

    This process owns it until `stack` is closed, unless another one does.
    """
    path = expanded(options.folder).absolute() if options.folder else state_folder() / "demo"
    now = (base or datetime.now(UTC)).replace(microsecond=0)
    try:
        if options.read_only:
            return _open_existing(path, options, stack)
        return _open_or_build(DemoFolder(path, stack, create=True), options, now, progress, stack)
    except OSError as error:
        raise UsageFault(f"Cannot use {path}: {error.strerror}", fix="Choose another --dir.") from None


def _open_existing(path: Path, options: DemoOptions, stack: ExitStack) -> BuiltDemo:
    """A demo that was built before, however old it is."""
    if not path.exists():
        raise _no_demo(path)
    folder = DemoFolder(path, stack, create=False)
    state = _read_state(folder)
    if state is None or not state.ready or options.reset or options.postgres:
        raise _no_demo(path)
    _require_same(state, options)
    message = ""
    if state.redis and options.redis:
        try:
            DemoRedis(folder).start_copy(stack)
        except (OSError, RedisFault) as fault:
            message = f"The demo's Redis did not start: {fault}."
    return BuiltDemo(path / _CONFIG, state.speed, owned=False, message=message)


def _no_demo(path: Path) -> ReadOnlyRefused:
    return ReadOnlyRefused(f"no demo is built in {path}", fix="Leave out --read-only once.")


def _open_or_build(
    folder: DemoFolder, options: DemoOptions, now: datetime, progress: ReportProgress, stack: ExitStack
) -> BuiltDemo:
    owned = folder.lock(stack)
    config, state = folder.path / _CONFIG, _read_state(folder)
    rebuild = options.reset or options.postgres or state is None or not state.ready
    if not owned:
        if rebuild or state is None:
            raise UsageFault(f"The demo in {folder.path} is open in another console", fix="Close that one first.")
        _require_same(state, options)
        return BuiltDemo(config, state.speed, False, "Another console has this demo open and runs its workers.")
    message = ""
    if not rebuild and state is not None:
        _require_same(state, options)
        age = abs(now - datetime.fromisoformat(state.base))
        message = f"The demo was {duration(age)} old and was rebuilt."
        if age < AGES_AFTER and not state.postgres:
            try:
                return BuiltDemo(config, state.speed, True, _open_redis(folder, state, options, stack))
            except RedisFault as fault:
                message = f"The demo's Redis did not start, so the demo was rebuilt: {fault}."
        options = options._replace(scale=state.scale, seed=state.seed, speed=state.speed)
    new = State(
        max(options.scale or SCALE, _SMALLEST), SEED if options.seed is None else options.seed,
        options.speed or SPEED, now.isoformat(), postgres=options.postgres,
    )
    why_no_redis = _rebuild(folder, new, options, now, progress, stack)
    return BuiltDemo(config, new.speed, True, message or why_no_redis)


def _open_redis(folder: DemoFolder, state: State, options: DemoOptions, stack: ExitStack) -> str:
    """Start the server of a demo that has one; returns what the user should know."""
    if state.redis and options.redis:
        DemoRedis(folder).start(stack)
    elif state.redis:
        return "The system thumbnails answers only while the demo is open in a console."
    return ""


def _rebuild(
    folder: DemoFolder, state: State, options: DemoOptions, base: datetime, progress: ReportProgress, stack: ExitStack
) -> str:
    """Replace what is in the folder by a new demo; returns what the user should know."""
    server = start_server(stack) if options.postgres else None
    DemoRedis(folder).end_old()
    folder.clear()
    folder.begin({name: value for name, value in asdict(state).items() if name not in ("redis", "ready")})
    redis, why_not = _new_redis(folder, stack) if options.redis else (None, "")
    _build(folder, state, base, progress, server, redis)
    folder.finish({"redis": redis is not None})
    return why_not


def _new_redis(folder: DemoFolder, stack: ExitStack) -> tuple[str | None, str]:
    """The URL of a new server, or None where none can be had, and what the user should know."""
    redis = DemoRedis(folder)
    if not redis.can_be_had():
        return None, ""
    try:
        redis.make_files()
        redis.start(stack)
    except RedisFault as fault:
        return None, f"The demo has no Redis, because it did not start: {fault}."
    return redis.url, ""


def _read_state(folder: DemoFolder) -> State | None:
    found = folder.about() or {}
    try:
        state = State(**{name: found[name] for name in State.__slots__})
        datetime.fromisoformat(state.base)
        return state if state.version == _VERSION else None
    except (KeyError, TypeError, ValueError):
        return None


def _require_same(state: State, options: DemoOptions) -> None:
    for name in ("scale", "seed", "speed"):
        if getattr(options, name) not in (None, getattr(state, name)):
            raise UsageFault(
                f"The demo there has scale {state.scale}, seed {state.seed} and speed {state.speed}",
                fix="Add --reset to rebuild it.",
            )


def _build(
    folder: DemoFolder, state: State, base: datetime, progress: ReportProgress, server: str | None, redis: str | None
) -> None:
    folder.expect(_TRAIL, _ANCHORS, _HISTORY, "workers.log", "views.json", "last-looked")
    systems = (*SYSTEMS, *(thumbnails.SYSTEMS if redis else ()))
    items = sizes(systems, state.scale)
    backends = {
        system.name: system.build(
            BuildContext(folder, items[system.name], state.seed, base, state.speed, progress, server, redis)
        )
        for system in systems
    }
    folder.write(_CONFIG, _config_text(folder.path, backends))
    build_past(folder.path / _CONFIG, base, state.seed)


def _config_text(folder: Path, backends: Mapping[str, Mapping[str, Any]]) -> str:
    """The config as YAML that is easy to read; its strings are JSON strings."""
    console = {**_CONSOLE, "trail": f"sqlite:///{folder / _TRAIL}", "anchor": str(folder / _ANCHORS)}
    lines = ["# The config of `retriage demo`. Nothing here is real.", "console:"]
    lines += [f"  {key}: {json.dumps(value)}" for key, value in console.items()]
    lines += ["history:", f"  url: {json.dumps(f'sqlite:///{folder / _HISTORY}')}", "backends:"]
    for name, section in backends.items():
        lines.append(f"  {name}:")
        lines += [f"    {key}: {json.dumps(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"

