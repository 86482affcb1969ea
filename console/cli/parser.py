"""The command line: global options, and one line instead of a usage screen for every mistake.

Light on purpose: `--version` and `--help` import nothing beyond this and the catalogue of commands.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from console.cli.commands import declare
from console.core.faults import UsageFault
from console.core.text import closest

ABOUT = "The terminal operations console for work that failed in several systems at once."
EXAMPLES = """\
examples:
  retriage demo                         a sandbox world to look around in
  retriage check                        config, backends and policies, with fixes
  retriage list --where 'condition:terminal updated<2h'
  retriage groups                       failures by cause, across backends
  retriage upcoming --until 1h          the retries that are coming

exit codes: 0 done; 1 some backend did not answer, or interrupted; 2 usage or config error; 3 refused;
4 no backend answered; 5 trail broken or plan altered"""

_INVALID_COMMAND = re.compile(r"argument COMMAND: invalid choice: '(.*?)' \(", re.S)


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are UsageFaults: one line, with what would fit."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        if found := _INVALID_COMMAND.match(message):
            raise UsageFault(f"there is no command '{found[1]}'", fix=_meant(found[1], self._commands()))
        raise UsageFault(message, fix=f"See `{self.prog} --help`.")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Unlike argparse, which passes over a help that cannot be written."""
        if message and (stream := file or sys.stderr):
            stream.write(message)

    def _commands(self) -> list[str]:
        choices = (action.choices for action in self._actions if isinstance(action.choices, dict))
        return [name for names in choices for name in names]


def _meant(name: str, commands: Iterable[str]) -> str:
    known = list(commands)
    close = closest(name, known)
    return f"Did you mean {close}?" if close else f"Commands are {', '.join(known)}."


def parse(arguments: Sequence[str], version: str) -> argparse.Namespace:
    """A filter or an order may begin with a minus, which argparse would take for an option."""
    joined: list[str] = []
    for word in arguments:
        if joined and joined[-1] in ("--where", "--sort") and word[:1] == "-" != word[1:2]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    if "-h" not in joined and "--help" not in joined:
        with suppress(UsageFault):
            return build_parser(version, joined).parse_args(joined)
    return build_parser(version).parse_args(joined)  # knows every command, to list or to suggest


def build_parser(version: str, words: Collection[str] | None = None) -> Parser:
    """The whole command line, or only what these words may need of it, which is quicker."""
    parser = Parser(prog="retriage", description=ABOUT, epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"retriage {version}")
    _add_global_options(parser, config=None, read_only=False)
    commands = parser.add_subparsers(
        metavar="COMMAND", dest="command", title="commands", parser_class=Parser,
        description="without one, the console opens",
    )
    # The global options may also follow the command; there they must not reset what came before it.
    shared = Parser(add_help=False)
    _add_global_options(shared, config=argparse.SUPPRESS, read_only=argparse.SUPPRESS)
    declare(commands, shared, words)
    return parser


def _add_global_options(parser: Parser, *, config: Any, read_only: Any) -> None:
    group = parser.add_argument_group("everywhere")
    group.add_argument(
        "--config", metavar="FILE", default=config,
        help="the config file; default: $RETRIAGE_CONFIG, else retriage/config.yaml in $XDG_CONFIG_HOME or ~/.config",
    )
    group.add_argument(
        "--read-only", action="store_true", default=read_only, help="audit mode: nothing can be changed"
    )
