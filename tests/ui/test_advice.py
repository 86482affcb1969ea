"""Advice in the console names keys and switches, never an option of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.cli.advice import advice_text as cli_advice
from console.core.advice import Advice, Step
from console.core.backend import Flag
from console.core.capabilities import CORE_SWITCHES, offered_switches
from console.ui.advice import advice_text as ui_advice
from plugins.workflow_steps import WorkflowSteps
from plugins.workflow_steps.prediction import WAKE_TASK
from tests.ui.terminal import ROOT

OPTION = re.compile(r"(?<![\w-])--[a-z]")
FOLDERS = ("console/core", "console/trail", "console/sql", "console/ui", "plugins")
OF_COMMANDS = {"discovery.py", "mapping_yaml.py", "guessing.py", "command_line.py"}
"""What only `retriage map` says, and the command behind a screen, which a person copies. The commands of a plugin, in its folder `commands`, may name options too."""


def said(path: Path) -> Iterator[str]:
    """Every text in the code but docstrings."""
    tree = ast.parse(path.read_text())
    explaining = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explaining:
            yield node.value


def speaking() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if path.name not in OF_COMMANDS and path.parent.name != "commands"]


@pytest.mark.parametrize("path", speaking(), ids=lambda p: p.name)
def test_no_option_is_named_outside_the_command_line(path: Path) -> None:
    assert not [text for text in said(path) if OPTION.search(text)]


def test_every_flag_has_a_switch() -> None:
    assert {switch.id for switch in CORE_SWITCHES} == set(Flag)


def test_a_plugins_switch_is_called_by_its_label() -> None:
    switches = offered_switches([WorkflowSteps])
    assert ui_advice(Advice(Step.TURN_ON, WAKE_TASK), switches) == 'Turn on "wake the task".'


@pytest.mark.parametrize("step", Step)
def test_each_front_end_words_every_step(step: Step) -> None:
    advice = Advice(step, WAKE_TASK if step is Step.TURN_ON else "reset")
    for words in (ui_advice(advice), cli_advice(advice)):
        assert re.fullmatch(r"[A-Z][^\n]*\.", words)


def test_advice_names_the_switch_or_the_option() -> None:
    attempts, flag = Advice(Step.SET_ATTEMPTS, "reset"), Advice(Step.TURN_ON, Flag.INCLUDE_UNRECOVERABLE.value)
    assert [ui_advice(attempts), cli_advice(attempts)] == ['Turn on "reset attempts".', "Use --attempts reset."]
    assert [ui_advice(flag), cli_advice(flag)] == [
        'Turn on "include unrecoverable".', "Use --include-unrecoverable.",
    ]
