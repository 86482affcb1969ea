"""The sandbox world: a folder with every part's store, and the config that opens them.

A new plugin adds one module with its `PARTS` and one line to `PARTS` here.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from console.core.faults import UsageFault
from console.core.paths import expanded
from console.core.text import duration
from console.demo import analyses, fulfilment, jobs, mail, payments, warehouse, webhooks
from console.demo.companion import companion
from console.demo.part import Site, sizes
from console.demo.server import server_for
from console.places import state_folder

PARTS = (
    *payments.PARTS, *jobs.PARTS, *mail.PARTS, *analyses.PARTS, *fulfilment.PARTS, *warehouse.PARTS,
    *webhooks.PARTS,
)

SCALE, SEED, SPEED = 2_000, 1, 12
AGES_AFTER = timedelta(minutes=25)
"""A world older than this has its storm behind it or nearly so, and is built again."""
_SMALLEST = 100
_MARK, _LOCK = "world.json", "world.lock"
_VERSION = 3
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

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which world; what is None is the world's own choice."""

    folder: str | None = None
    scale: int | None = None
    seed: int | None = None
    speed: int | None = None
    """How many times shorter the systems' own delays are than their originals."""
    reset: bool = False
    postgres: bool = False
    """The parts that can use a PostgreSQL get a real one; it dies with its world, which is always built anew."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What a built world says of itself; `ready` once it is complete."""

    scale: int
    seed: int
    speed: int
    base: str
    postgres: bool = False
    ready: bool = False
    version: int = _VERSION


@dataclass(frozen=True, slots=True)
class World:
    """A built world. Whoever opened it first is its keeper: nobody else may rebuild it or run its workers."""

    config: Path
    speed: int
    keeper: bool
    told: str = ""
    """What whoever opens it should know."""

    def live(self, keep: ExitStack) -> None:
        """Let its systems work until `keep` is closed, or this process ends in any other way."""
        if self.keeper:
            keep.enter_context(companion("console.demo.workers", [str(self.config), str(self.speed)]))


def open_world(wanted: Wanted, progress: Progress, keep: ExitStack, base: datetime | None = None) -> World:
    """The world in that folder, built when there is none yet or it has aged; the XDG place by default.

    It stays ours until `keep` is closed.
    """
    place = expanded(wanted.folder).resolve() if wanted.folder else state_folder() / "demo"
    try:
        _require_usable(place)
        ours = _locked(place, keep)
    except OSError as error:
        raise UsageFault(f"{place} cannot be used: {error.strerror}", fix="Choose another --dir.") from None
    now = (base or datetime.now(UTC)).replace(microsecond=0)
    config, mark = place / "config.yaml", _mark(place)
    anew = wanted.reset or wanted.postgres or mark is None or not mark.ready
    if not ours:
        if anew or mark is None:
            raise UsageFault(f"the world at {place} is open in another console", fix="Close that one first.")
        _require_same(mark, wanted)
        return World(config, mark.speed, False, "Another console has this world open, and runs its workers.")
    told = ""
    if not anew and mark is not None:
        _require_same(mark, wanted)
        age = abs(now - datetime.fromisoformat(mark.base))
        if age < AGES_AFTER and not mark.postgres:
            return World(config, mark.speed, True)
        told = f"The sandbox world was {duration(age)} old: it was built anew, as of now."
        wanted = replace(wanted, scale=mark.scale, seed=mark.seed, speed=mark.speed)
    server = server_for(keep) if wanted.postgres else None
    _clear(place)
    new = Mark(
        max(wanted.scale or SCALE, _SMALLEST), SEED if wanted.seed is None else wanted.seed, wanted.speed or SPEED,
        now.isoformat(), postgres=wanted.postgres,
    )
    _build(place, new, now, progress, server)
    return World(config, new.speed, True, told)


def _locked(place: Path, keep: ExitStack) -> bool:
    """Whether nobody else has the world open; it ends with this process, however that ends."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(place / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    keep.callback(os.close, file)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _require_usable(place: Path) -> None:
    if any(char in str(place) for char in '?#%"\\') or not str(place).isprintable():
        raise UsageFault(f"{str(place)!r} cannot be part of a database URL", fix="Choose a plainer --dir.")
    if place.exists() and not place.is_dir():
        raise UsageFault(f"{place} is not a folder")
    if place.is_dir() and not (place / _MARK).exists() and {path.name for path in place.iterdir()} - {_LOCK}:
        raise UsageFault(f"{place} has other files in it", fix="Choose an empty or a new --dir.")


def _mark(place: Path) -> Mark | None:
    try:
        found = json.loads((place / _MARK).read_text())
        return Mark(**found) if found.get("version") == _VERSION else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _require_same(mark: Mark, wanted: Wanted) -> None:
    for name in ("scale", "seed", "speed"):
        if getattr(wanted, name) not in (None, getattr(mark, name)):
            raise UsageFault(
                f"the world there has {mark.scale} items, seed {mark.seed} and speed {mark.speed}",
                fix="Add --reset to build another.",
            )


def _clear(place: Path) -> None:
    """Everything of an older world but its lock. The mark goes last: what is left of a cut is still a world's."""
    if not (place / _MARK).exists():
        return
    for path in sorted(place.iterdir(), key=lambda path: path.name == _MARK):
        if path.name != _LOCK:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _build(place: Path, mark: Mark, base: datetime, progress: Progress, server: str | None) -> None:
    _write_private(place / _MARK, json.dumps(asdict(mark)))
    items = sizes(PARTS, mark.scale)
    backends = {
        part.name: part.build(Site(place, items[part.name], mark.seed, base, mark.speed, progress, server))
        for part in PARTS
    }
    _write_private(place / "config.yaml", _config_text(place, backends))
    _write_private(place / _MARK, json.dumps(asdict(replace(mark, ready=True))))


def _config_text(place: Path, backends: Mapping[str, Mapping[str, Any]]) -> str:
    """YAML by hand: its strings are JSON's, and the result is meant to be read."""
    console = {**_CONSOLE, "trail": f"sqlite:///{place / 'trail.db'}", "anchor": str(place / "anchors")}
    lines = ["# The sandbox world of `retriage demo`. Nothing here is real.", "console:"]
    lines += [f"  {key}: {json.dumps(value)}" for key, value in console.items()]
    lines.append("backends:")
    for name, section in backends.items():
        lines.append(f"  {name}:")
        lines += [f"    {key}: {json.dumps(value)}" for key, value in section.items()]
    return "\n".join(lines) + "\n"


def _write_private(path: Path, text: str) -> None:
    path.touch(mode=0o600)
    path.write_text(text)
