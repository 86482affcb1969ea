"""Makes docs/commands-and-keys.md from the argparse tree and the action catalogue."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from console.actions.catalogue import EVERYWHERE, PLACES, actions_of
from console.cli.parser import build_parser
from console.ui.actions import key_words

_SHARED = ("--help", "--config", "--read-only", "--version")

HEAD = """\
# Commands and keys

This page is generated from the code by `python -m tests.docs`. Do not edit it.

## Commands

`retriage [--config FILE] [--read-only] COMMAND`. Without a command the console opens. Every command has `--help` with
examples.
"""

KEYS = """\
## Keys

The mouse works too. `?` shows the keys of the current screen, and `ctrl+p` finds every action by name. `console.keymap` in
the config changes keys; it needs the id of an action, which is in the last column.
"""


def page() -> str:
    return "\n".join([HEAD, *_commands(), KEYS, *_keys()]).rstrip() + "\n"


def _subparsers(parser: argparse.ArgumentParser) -> Any:
    return next((action for action in parser._actions if isinstance(action, argparse._SubParsersAction)), None)


def _commands() -> Iterator[str]:
    parser = build_parser("0")
    yield "| option of every command | meaning |\n|---|---|"
    yield from (_option(parser, action) for action in parser._actions if _names(action) and _is_shared(action))
    yield "\n| command | does |\n|---|---|"
    family = _subparsers(parser)
    for entry in family._choices_actions:
        yield f"| [`{entry.dest}`](#{entry.dest}) | {entry.help} |"
    yield ""
    for entry in family._choices_actions:
        yield from _command(entry.dest, entry.help, family.choices[entry.dest], 3)


def _command(name: str, summary: str, parser: argparse.ArgumentParser, level: int) -> Iterator[str]:
    yield f"{'#' * level} {name}\n"
    yield f"{summary[0].upper()}{summary[1:]}.\n"
    family = _subparsers(parser)
    if family is None or not family.required:
        actions = [action for action in parser._actions if action is not family]
        words = " ".join(_value(action) for action in actions if not action.option_strings)
        yield f"`retriage {name}{' ' if words else ''}{words}`\n"
        rows = [_option(parser, action) for action in actions if not _is_shared(action)]
        if rows:
            yield "| argument | meaning |\n|---|---|"
            yield from rows
            yield ""
    for entry in family._choices_actions if family is not None else ():
        yield from _command(f"{name} {entry.dest}", entry.help, family.choices[entry.dest], level + 1)


def _names(action: argparse.Action) -> list[str]:
    return [name for name in action.option_strings if name.startswith("--")]


def _is_shared(action: argparse.Action) -> bool:
    return any(name in _SHARED for name in _names(action))


def _value(action: argparse.Action) -> str:
    if action.choices is not None and not action.metavar:
        return "|".join(map(str, action.choices))
    return str(action.metavar or action.dest.upper())


def _option(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    text = parser._get_formatter()._expand_help(action) if action.help else ""
    takes = "" if action.nargs == 0 or not action.option_strings else f" {_value(action)}"
    name = _names(action)[0] + takes if action.option_strings else _value(action)
    needed = " (required)" if action.required and action.option_strings else ""
    return f"| `{_cell(name)}` | {_cell(text)}{needed} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _keys() -> Iterator[str]:
    for place, title in ((EVERYWHERE, "Everywhere"), *PLACES.items()):
        yield f"### {title}\n"
        yield "| key | does | action id |\n|---|---|---|"
        yield from (f"| `{key_words(a.key)}` | {_cell(a.help)} | `{a.id}` |" for a in actions_of(place))
        yield ""
