"""`completion`: print a completion script for a shell."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Iterator

import shtab

from console import __version__
from console.cli.context import CommandContext
from console.cli.parser import build_parser
from console.cli.render import stdout

_PATHS = {"FILE": shtab.FILE, "FOLDER": shtab.DIRECTORY}


def print_script(args: Namespace, context: CommandContext) -> int:  # noqa: ARG001
    parser = build_parser(__version__)
    for action in _actions(parser):
        if isinstance(action.metavar, str) and action.metavar in _PATHS:
            action.complete = _PATHS[action.metavar]  # type: ignore[attr-defined]
    stdout().write(shtab.complete(parser, shell=args.shell) + "\n")
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                yield from _actions(sub)
