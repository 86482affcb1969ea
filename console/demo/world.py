"""The sandbox world: a folder with every part's store, and the config that opens them.

A new plugin adds one module with its `PARTS` and one line to `PARTS` here.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from console.core.faults import UsageFault
from console.demo import sqlite_queues
from console.demo.part import Site
from console.settings.models import PLACES

PARTS = (*sqlite_queues.PARTS,)

SCALE, SEED = 2_000, 1
_SMALLEST = 100
_MARK = "world.json"
_VERSION = 1
_CONSOLE: Mapping[str, Any] = {
    "operator": "${USER:-}",
    "views": {
        "storms": "condition:retrying next<30m",
        "hopeless": "condition:terminal recoverable:no",
        "odd": "key~odd condition:*",
    },
    "runbooks": {
        "429 too many requests": "https://wiki.example/runbooks/rate-limit",
        "invalid api key": "https://wiki.example/runbooks/rotate-keys",
        "does not exist": "https://wiki.example/runbooks/schema-change",
    },
}

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Mark:
    """What a built world says of itself; `ready` once it is complete."""

    scale: int
    seed: int
    base: str
    ready: bool = False
    version: int = _VERSION


def build_world(
    folder: str | None, scale: int | None, seed: int | None, reset: bool, progress: Progress,
    base: datetime | None = None,
) -> Path:
    """The config of the world in that folder, built when there is none yet; the XDG place by default."""
    place = Path(folder).expanduser().resolve() if folder else PLACES.user_state_path / "demo"
    _require_usable(place)
    config, mark = place / "config.yaml", _mark(place)
    if mark is not None and mark.ready and not reset:
        _require_same(mark, scale, seed)
        return config
    _clear(place)
    moment = (base or datetime.now(UTC)).replace(microsecond=0)
    new = Mark(max(scale or SCALE, _SMALLEST), SEED if seed is None else seed, moment.isoformat())
    _build(place, new, moment, progress)
    return config


def _require_usable(place: Path) -> None:
    if any(char in str(place) for char in '?#%"\\') or not str(place).isprintable():
        raise UsageFault(f"{str(place)!r} cannot be part of a database URL", fix="Choose a plainer --dir.")
    if place.exists() and not place.is_dir():
        raise UsageFault(f"{place} is not a folder")
    if place.is_dir() and not (place / _MARK).exists() and any(place.iterdir()):
        raise UsageFault(f"{place} has other files in it", fix="Choose an empty or a new --dir.")


def _mark(place: Path) -> Mark | None:
    try:
        found = json.loads((place / _MARK).read_text())
        return Mark(**found) if found.get("version") == _VERSION else None
    except (OSError, ValueError, TypeError, AttributeError):
        return None


def _require_same(mark: Mark, scale: int | None, seed: int | None) -> None:
    if (scale or mark.scale) != mark.scale or (mark.seed if seed is None else seed) != mark.seed:
        raise UsageFault(
            f"the world there has {mark.scale} items and seed {mark.seed}", fix="Add --reset to build another."
        )


def _clear(place: Path) -> None:
    if (place / _MARK).exists():
        shutil.rmtree(place)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)


def _build(place: Path, mark: Mark, base: datetime, progress: Progress) -> None:
    _write_private(place / _MARK, json.dumps(asdict(mark)))
    backends = {
        part.name: part.build(Site(place, round(mark.scale * part.share), mark.seed, base, progress))
        for part in PARTS
    }
    _write_private(place / "config.yaml", _config_text(place, backends))
    _write_private(place / _MARK, json.dumps({**asdict(mark), "ready": True}))


def _config_text(place: Path, backends: Mapping[str, Mapping[str, Any]]) -> str:
    """YAML by hand: its strings are JSON's, and the result is meant to be read."""
    console = {**_CONSOLE, "trail": f"sqlite:///{place / 'trail.db'}"}
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
