"""The command line is built only as far as it is needed, and is the same as the whole of it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import pytest

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


def test_a_word_that_is_a_value_hides_no_command() -> None:
    assert parse(["--config", "list", "plan", "--where", "trail"], "0").run == "plans.plan"


def test_a_mistyped_command_is_held_against_all_of_them() -> None:
    with pytest.raises(UsageFault, match="no command 'trial'") as told:
        parse(["trial", "--where", "list"], "0")
    assert told.value.fix == "Did you mean trail?"
