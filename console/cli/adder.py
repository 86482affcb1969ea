"""How a command is declared: the `Adder`, and the options that several commands share. Plugins use it too."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from console.cli.parser import Parser

FORMATS = ("table", "json", "jsonl", "csv")
DEFAULT_LIMIT = 100

CONFIRMING = """\
On a terminal it asks before changing anything. Otherwise --confirm must be the number of items that would change.
SIGTERM, SIGINT and SIGHUP stop it after the items it is writing; `retriage overrides resume` continues it."""

_PACKAGE = "console.cli"


class Adder:
    """Adds commands with their summary, their examples and the function that runs them."""

    def __init__(self, commands: Any, shared: Parser, package: str = _PACKAGE, *, needs_trail: bool = False) -> None:
        self._commands = commands
        self._shared = shared
        self._package = package
        self._needs_trail = needs_trail

    def family(self, name: str, summary: str, package: str = _PACKAGE) -> Adder:
        """A command with subcommands, which all use the trail. `package` is where their functions are."""
        description = summary[0].upper() + summary[1:] + "."
        parser: Parser = self._commands.add_parser(name, help=summary, description=description, parents=[self._shared])
        commands = parser.add_subparsers(metavar="COMMAND", dest="subcommand", required=True, parser_class=type(parser))
        return Adder(commands, self._shared, package, needs_trail=True)

    def within(self, parser: Parser) -> Adder:
        """Adds subcommands to a command that also works without one. They all use the trail."""
        commands = parser.add_subparsers(metavar="COMMAND", dest="subcommand", parser_class=type(parser))
        return Adder(commands, self._shared, needs_trail=True)

    def __call__(self, name: str, summary: str, run: str, examples: str, more: str = "") -> Parser:
        epilog = "examples:\n" + "\n".join(f"  retriage {line}" for line in examples.splitlines())
        parser: Parser = self._commands.add_parser(
            name, help=summary, description=summary[0].upper() + summary[1:] + ".",
            epilog=f"{epilog}\n\n{more}" if more else epilog, parents=[self._shared],
        )
        parser.set_defaults(
            run=f"{self._package}.{run}", parser=parser, graceful=False, needs_trail=self._needs_trail
        )
        return parser


# --- options several commands share -----------------------------------------------------------------


def add_attempts(parser: Parser, note: str = "") -> None:
    parser.add_argument("--attempts", choices=("keep", "reset"), default="keep",
                        help=note or "keep the attempt counter (usually one more try) or reset it; default: keep")


def add_pace(parser: Parser) -> None:
    parser.add_argument("--pace", metavar="PACE", default="now",
                        help="now, 'over 30m', 10/s or 'canary 20'; default: now")


def add_confirmation(parser: Parser) -> None:
    parser.add_argument("--reason", metavar="TEXT", required=True, help="why; it is recorded in the trail")
    parser.add_argument("--ticket", metavar="ID", help="a ticket to record with it")
    parser.add_argument("--confirm", metavar="N", type=whole_number, help="the number of items that would change")
    parser.add_argument("--submit", action="store_true",
                        help="change nothing yet: store the plan as a proposal, for somebody else to approve")
    add_detach(parser)


def add_detach(parser: Parser) -> None:
    parser.add_argument("--detach", action="store_true", help="confirm it, and let `retriage runner` carry it out")


def add_format(parser: Parser, formats: tuple[str, ...] = FORMATS, *, of: str = "") -> None:
    parser.add_argument("--format", choices=formats, help=f"{of}default: table on a terminal, otherwise jsonl")


def add_watch(parser: Parser) -> None:
    parser.add_argument(
        "--watch", action="store_true",
        help="repeat it until Ctrl-C, as often as `console.refresh` and `console.load` allow: a table on a terminal is "
             "redrawn, anything else is printed again (in a pipe as JSON lines; not as csv)",
    )


def add_limit(parser: Parser) -> None:
    parser.add_argument("--limit", metavar="N", type=whole_number, default=DEFAULT_LIMIT,
                        help=f"at most N; 0 for all; default: {DEFAULT_LIMIT}")


def whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise argparse.ArgumentTypeError(f"'{text}' is not a whole number such as 100")
    return int(text)


def positive_number(text: str) -> int:
    if not (found := whole_number(text)):
        raise argparse.ArgumentTypeError("must be at least 1")
    return found
