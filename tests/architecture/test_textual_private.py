"""Textual's private API is used in one module only: `console.ui.textual_workarounds`."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ALLOWED = "textual_workarounds.py"
MODULES = [path for path in sorted((ROOT / "console/ui").rglob("*.py")) if path.name not in (ALLOWED, "__init__.py")]
PRIVATE = re.compile(r"_(?!replace$|asdict$|fields$|make$)[a-z]\w*")
"""Not the four names of every named tuple, which are public."""


@cache
def private_names(of: type) -> frozenset[str]:
    """The private names that a class of Textual defines or assigns to itself."""
    assigned = re.findall(r"self\.(_[a-z]\w*)\s*(?::[^=\n]+)?=[^=]", inspect.getsource(of))
    return frozenset(assigned) | {name for name in vars(of) if PRIVATE.fullmatch(name)}


def inherited_private_names(of: type) -> set[str]:
    bases = [base for base in of.__mro__ if base.__module__.partition(".")[0] in ("textual", "rich")]
    return {name for base in bases for name in private_names(base)}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "console/ui")))
def test_no_private_name_of_textual_is_used(path: Path) -> None:
    tree = ast.parse(path.read_text())
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("textual"):
            assert not re.search(r"\._", node.module), f"line {node.lineno}: {node.module} is private"
            assert not any(alias.name.startswith("_") for alias in node.names), f"line {node.lineno}"
        if isinstance(node, ast.Attribute) and PRIVATE.fullmatch(node.attr):
            owner = ast.unparse(node.value)
            assert owner in ("self", "cls", "super()"), f"line {node.lineno}: {node.attr} of another object is private"
        if isinstance(node, ast.ClassDef) and isinstance(of := getattr(module, node.name, None), type):
            used = {n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute) and PRIVATE.fullmatch(n.attr)}
            used |= {n.name for n in node.body if isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef))}
            assert not used & inherited_private_names(of), f"{node.name} shares private names with its Textual base"


def test_private_names_are_recognised() -> None:
    from textual.app import App

    assert {"_driver", "_keymap", "_handle_exception", "_bindings"} <= inherited_private_names(App)
