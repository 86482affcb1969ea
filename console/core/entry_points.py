"""The entry points of all installed distributions. A damaged distribution hides only its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import EntryPoint, distributions, entry_points


def points_in(group: str) -> tuple[EntryPoint, ...]:
    """The entry points in a group. Whatever lies in a folder of packages may be read here, so anything can fail."""
    with suppress(Exception):
        return tuple(entry_points(group=group))
    return tuple(dict.fromkeys(_one_by_one(group)))


def _one_by_one(group: str) -> Iterator[EntryPoint]:
    for distribution in distributions():
        with suppress(Exception):
            yield from distribution.entry_points.select(group=group)


def origin_of(point: EntryPoint) -> tuple[str, str]:
    """The name and version of the distribution of an entry point; `unknown` if it does not say."""
    with suppress(Exception):
        if point.dist is not None:
            return str(point.dist.metadata["Name"] or "unknown"), str(point.dist.metadata["Version"] or "")
    return "unknown", ""
