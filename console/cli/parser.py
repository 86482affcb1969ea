"""The command line: global options, and a one-line message for every mistake.

`--version` and `--help` import nothing beyond this module and the declared commands.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from console.cli.commands import declare
from console.core.faults import UsageFault
from console.core.text import closest, did_you_mean

ABOUT = "A terminal operations console for work that failed in several systems at once."
EXAMPLES = """\
examples:
  retriage demo                         try it on sample systems
  retriage check                        examine the config, every backend and its policy
  retriage list --where 'condition:terminal updated<2h'
  retriage causes                       failures counted by cause, across backends
  retriage upcoming --until 1h          the retries of the next hour

exit codes: 0 done; 1 some backend did not answer, some items were not changed, or interrupted;
2 usage or config error; 3 refused; 4 no backend answered, or the trail cannot be read;
5 trail broken or plan altered; 6 an alert is on (alerts --once)"""

_MESSAGES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"the following arguments are required: (.*)", re.S), "Missing: {0}"),
    (re.compile(r"argument ([^:]*): expected one argument"), "{0} needs a value"),
    (re.compile(r"argument ([^:]*): ignored explicit argument '(.*)'", re.S), "{0} takes no value"),
    (re.compile(r"argument ([^:]*): (.*)", re.S), "{0}: {1}"),
)
"""argparse's messages, and what is printed instead."""
_SWITCH = re.compile(r"--[a-z][a-z0-9-]*")
_INVALID_CHOICE = re.compile(r"argument ([^:]*): invalid choice: '(.*?)' \(", re.S)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises a UsageFault with one line for every mistake."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        if found := _INVALID_CHOICE.match(message):
            option, value = found[1], found[2]
            what = f"Unknown command '{value}'" if option == "COMMAND" else f"{option} cannot be '{value}'"
            raise UsageFault(what, fix=did_you_mean(value, self._choices(option)))
        for pattern, words in _MESSAGES:
            if found := pattern.fullmatch(message):
                message = words.format(*found.groups())
                break
        raise UsageFault(message, fix=f"See `{self.prog} --help`.")

    def reject(self, unknown: Sequence[str]) -> NoReturn:
        """Report the words of a command line that this command does not take."""
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        what = f"Unknown option {options[0]}" if options else f"Unexpected argument: {' '.join(unknown)}"
        close = closest(options[0], self._option_string_actions) if options else None
        raise UsageFault(what, fix=f"Did you mean '{close}'?" if close else f"See `{self.prog} --help`.")

    def _print_message(self, message: str, file: Any = None) -> None:
        """Unlike argparse, fail when the help cannot be written."""
        if message and (stream := file or sys.stderr):
            stream.write(message)

    def _choices(self, option: str) -> list[str]:
        for action in self._actions:
            if action.choices and option in (action.metavar, action.dest, *action.option_strings):
                return [str(choice) for choice in action.choices]
        return []


def parse(arguments: Sequence[str], version: str) -> argparse.Namespace:
    """Parse a command line. A filter or sort column may start with a minus, which argparse takes for an option."""
    joined: list[str] = []
    for word in arguments:
        if joined and joined[-1] in ("--where", "--sort") and word[:1] == "-" != word[1:2]:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    if "-h" not in joined and "--help" not in joined:
        with suppress(UsageFault):
            return _parse(build_parser(version, joined), joined)
    return _parse(build_parser(version), joined)  # with every command, to list or suggest one


def _parse(parser: Parser, words: Sequence[str]) -> argparse.Namespace:
    """Parse the words. Commands that take switches of plugins accept unknown options, and check them themselves."""
    args, unknown = parser.parse_known_args(words)
    switches = [word for word in unknown if _SWITCH.fullmatch(word)]
    if unknown and (len(switches) < len(unknown) or not getattr(args, "takes_switches", False)):
        getattr(args, "parser", parser).reject(unknown)
    args.switches = switches
    return args


def build_parser(version: str, words: Collection[str] | None = None) -> Parser:
    """The parser for every command, or only for the commands among these words, which is faster."""
    parser = Parser(prog="retriage", description=ABOUT, epilog=EXAMPLES)
    parser.add_argument("--version", action="version", version=f"retriage {version}")
    _add_global_options(parser, config=None, read_only=False)
    commands = parser.add_subparsers(
        metavar="COMMAND", dest="command", title="commands", parser_class=Parser,
        description="without a command, the console opens",
    )
    # Global options may also follow the command; there they must not reset what came before it.
    shared = Parser(add_help=False)
    _add_global_options(shared, config=argparse.SUPPRESS, read_only=argparse.SUPPRESS)
    declare(commands, shared, words)
    return parser


def _add_global_options(parser: Parser, *, config: Any, read_only: Any) -> None:
    group = parser.add_argument_group("global options")
    group.add_argument(
        "--config", metavar="FILE", default=config,
        help="the config file; default: $RETRIAGE_CONFIG, else retriage/config.yaml in $XDG_CONFIG_HOME or ~/.config",
    )
    group.add_argument(
        "--read-only", action="store_true", default=read_only, help="audit mode: nothing can be changed"
    )
