"""At the console nobody is told to use an option of the command line."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from console.core.backend import Flag
from console.ui.words import SWITCHES, here
from tests.ui.terminal import ROOT

OPTION = re.compile(r"(?<![\w-])--[a-z]")
FOLDERS = ("console/core", "console/trail", "console/sql", "console/ui", "plugins")
OF_COMMANDS = {"looking.py", "sketch.py", "guessing.py"}
"""What only `retriage map` says."""


def said(path: Path) -> Iterator[str]:
    """Every text in the code but docstrings."""
    tree = ast.parse(path.read_text())
    explaining = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in explaining:
            yield node.value


def speaking() -> list[Path]:
    found = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if path.name not in OF_COMMANDS and path.name != "words.py"]


@pytest.mark.parametrize("path", [p for p in speaking() if any(map(OPTION.search, said(p)))], ids=lambda p: p.name)
def test_no_option_is_named_at_the_console(path: Path) -> None:
    for text in said(path):
        assert not OPTION.search(here(text)), text


def test_some_are_named_to_begin_with() -> None:
    assert sum(bool(OPTION.search(text)) for path in speaking() for text in said(path)) > 8


def test_every_flag_has_a_switch() -> None:
    assert set(SWITCHES) == {flag.value for flag in Flag}


def test_what_can_be_done_here_is_named() -> None:
    assert here("not recoverable; allow it with --allow-unrecoverable") == "not recoverable; allow it with “unrecoverable” below"
    assert here("Narrow the filter, use --limit, or raise max_items in the config.") == (
        "Narrow the filter, mark fewer, or raise max_items in the config."
    )
    assert here("an error of somebody's own: --limits exceeded") == "an error of somebody's own: --limits exceeded"
