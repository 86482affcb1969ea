"""The command line is built only as far as it is needed, and is the same as the whole of it."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping

import pytest

from console.cli.adder import Adder
from console.cli.commands import GROUP
from console.cli.parser import build_parser, parse
from console.core.faults import UsageFault


def commands_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    return next((action.choices for action in parser._actions if isinstance(action.choices, dict)), {})


WHOLE = commands_of(build_parser("0"))


@pytest.mark.parametrize("name", WHOLE)
def test_a_command_alone_is_what_it_is_among_all(name: str) -> None:
    some = commands_of(build_parser("0", [name]))
    assert len(some) < len(WHOLE)
    assert some[name].format_help() == WHOLE[name].format_help()
    assert set(commands_of(some[name])) == set(commands_of(WHOLE[name]))


def every_command(commands: Mapping[str, argparse.ArgumentParser]) -> Iterator[argparse.ArgumentParser]:
    for command in commands.values():
        yield command
        yield from every_command(commands_of(command))


@pytest.mark.parametrize("command", list(every_command(WHOLE)), ids=lambda command: command.prog)
def test_every_example_of_the_help_is_a_command_line(command: argparse.ArgumentParser) -> None:
    examples = re.findall(r"^  (retriage .+)$", command.format_help().partition("examples:\n")[2], re.M)
    assert examples or commands_of(command)
    for example in examples:
        parse(shlex.split(example.partition(" > ")[0])[1:], "0")


def test_a_word_that_is_a_value_hides_no_command() -> None:
    assert parse(["--config", "list", "plan", "--where", "trail"], "0").run == "console.cli.plans.plan"


def test_a_mistyped_command_is_compared_with_all_of_them() -> None:
    with pytest.raises(UsageFault, match="Unknown command 'trial'") as caught:
        parse(["trial", "--where", "list"], "0")
    assert caught.value.fix == "Did you mean 'trail'?"


class Point:
    """An entry point of the group `retriage.commands`."""

    def __init__(self, name: str, family: object) -> None:
        self.name = name
        self._family = family

    def load(self) -> object:
        if isinstance(self._family, Exception):
            raise self._family
        return self._family


def test_a_plugin_brings_commands_and_a_broken_one_breaks_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def declare(add: Adder) -> None:
        family = add.family("archive", "archive what is done", "my_queue.commands")
        family("old", "archive old items", "archive_old", "archive old")

    points = [Point("broken", ImportError("no module")), Point("archive", declare)]
    monkeypatch.setattr("console.core.entry_points.entry_points", lambda group: points if group == GROUP else [])
    assert parse(["archive", "old"], "0").run == "my_queue.commands.archive_old"
    assert parse(["list"], "0").run == "console.cli.items.list_items"
    with pytest.raises(UsageFault, match="Unknown command 'broken'"):
        parse(["broken"], "0")


def test_a_switch_of_a_plugin_is_kept_for_the_command_to_check() -> None:
    assert parse(["plan", "--all", "--force-archive"], "0").switches == ["--force-archive"]
    for words, message in (
        (["plan", "--all", "--force=1"], "Unknown option --force. Did you mean '--format'?"),
        (["list", "--force-archive"], "Unknown option --force-archive. See `retriage list --help`."),
        (["plan", "--all", "stray"], "Unexpected argument: stray. See `retriage plan --help`."),
    ):
        with pytest.raises(UsageFault) as refused:
            parse(words, "0")
        assert str(refused.value) == message
