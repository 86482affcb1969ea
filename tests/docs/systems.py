"""The generated table of systems: what Retriage can do to each, from the plugins themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from console.core.system_table import SystemRow, systems_of
from console.registry import available, load

PAGE = Path(__file__).parents[2] / "docs/systems.md"
_HEAD = """\
# What Retriage can do to each system

Generated from the plugins; `retriage plugins --format json` says the same. A mapping of your own can do what its
[sections](mapping.md) say. Everything that only reads works with every system: lists, filters, causes, upcoming retries
and items.

| column | says |
|---|---|
| requeue | whether attempts can be kept or reset |
| discard | whether the system can be told to give an item up: *deletes* where that deletes the item, *also terminal* where items that it has given up itself can be closed, too |
| undo | *exact*: the items are as before; *by a new entry*: a new transition brings them back |
| pace | who spreads the items over time: due times *in its rows*, or the override, which then has to keep running |
| watch | how an execution after the requeue is noticed; *gone is recovered* where finished items are deleted |

"""


def rows() -> Iterator[tuple[str, SystemRow]]:
    """Every system of every plugin of this distribution, with the plugin's name."""
    for plugin in sorted(available(), key=lambda each: each.name):
        if plugin.distribution == "retriage":
            yield from ((plugin.name, row) for row in systems_of(plugin.name, load(plugin.name)))


def page() -> str:
    columns = ("plugin", *SystemRow._fields)
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    lines += [f"| `{plugin}` | {' | '.join(row)} |" for plugin, row in rows()]
    return _HEAD + "\n".join(lines) + "\n"
