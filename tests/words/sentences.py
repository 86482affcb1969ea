"""Collects every sentence the product can say, from the source, the command line and the action catalogue.

A literal is taken if it looks like words: it contains a space and a lower-case letter. That takes a few texts too many
(log formats, parts of SQL are left out where they can be recognised), but it misses none.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGES = ("console", "plugins")

_SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|PRAGMA|BEGIN|COMMIT|SAVEPOINT|ROLLBACK|RELEASE|WITH|VALUES|"
    r"WHERE|FROM|ORDER BY|SET|AND|OR|ON|RETURNING|LIMIT|UNION|JOIN|LEFT JOIN|FOR UPDATE|CASE|ATTACH|VACUUM)\b"
)
_WORDS = re.compile(r"[a-z]")
_SHOWN = {
    "Finding": "finding",
    "notify": "toast",
    "Draft": "plan",
    "Notice": "plan",
    "Outcome": "outcome",
    "KeyAction": "action",
}


class Sentence(NamedTuple):
    """One text a person may read, where it is written, and what kind of text it is."""

    kind: str
    where: str
    text: str


@cache
def from_source() -> tuple[Sentence, ...]:
    """The texts in the code: faults, check findings, help, notifications, and every other literal made of words."""
    return in_modules(
        {
            str(path.relative_to(ROOT)): path.read_text()
            for package in PACKAGES
            for path in sorted((ROOT / package).rglob("*.py"))
        }
    )


def in_modules(sources: Mapping[str, str]) -> tuple[Sentence, ...]:
    """The texts in these modules, by their names."""
    trees = {name: ast.parse(source, name) for name, source in sources.items()}
    faults = fault_classes(trees.values())
    collectors = [_Literals(name, faults) for name in trees]
    for collector, tree in zip(collectors, trees.values(), strict=True):
        collector.visit(tree)
    return tuple(sentence for collector in collectors for sentence in collector.found)


def fault_classes(trees: Iterable[ast.AST]) -> frozenset[str]:
    """The names of all subclasses of Fault, in any module."""
    bases = {
        node.name: {base.id if isinstance(base, ast.Name) else getattr(base, "attr", "") for base in node.bases}
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"Fault"}
    while more := {name for name, parents in bases.items() if name not in found and parents & found}:
        found |= more
    return frozenset(found)


class _Literals(ast.NodeVisitor):
    """Collects the literals of one module. `_kind` is what shows the literal that is being visited."""

    def __init__(self, name: str, faults: frozenset[str]) -> None:
        self._name = name
        self._faults = faults
        self._kind = "text"
        self.found: list[Sentence] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        if node.name in self._faults and (text := ast.get_docstring(node)):
            self._add("fault", node, text.splitlines()[0])
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring, or the description of a field
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        kind = "fault" if called in self._faults else _SHOWN.get(called, self._kind)
        self.visit(node.func)
        for part in node.args:
            self._visit_as(kind, part)
        for word in node.keywords:
            self._visit_as("help" if word.arg in ("help", "description", "epilog") else kind, word.value)

    def _visit_as(self, kind: str, node: ast.AST) -> None:
        outer, self._kind = self._kind, kind
        self.visit(node)
        self._kind = outer

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._literal(node)
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        self._literal(node)

    def _literal(self, node: ast.Constant | ast.JoinedStr) -> None:
        text = template(node)
        if text and " " in text.strip() and _WORDS.search(text) and not _SQL.match(text):
            self._add(self._kind, node, text)

    def _add(self, kind: str, node: Any, text: str) -> None:
        self.found.append(Sentence(kind, f"{self._name}:{node.lineno}", text))


def template(node: ast.Constant | ast.JoinedStr) -> str | None:
    """A literal as text; what an f-string fills in is shown as {expression}."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    parts = []
    for part in node.values:
        if isinstance(part, ast.Constant):
            parts.append(str(part.value))
        else:
            parts.append(f"{{{ast.unparse(part.value)}}}" if isinstance(part, ast.FormattedValue) else "")
    return "".join(parts)


def from_command_line() -> Iterator[Sentence]:
    """The help of every command, as it is printed."""
    from console.cli.parser import build_parser

    yield from _helps("retriage", build_parser("0"))


def _helps(name: str, parser: argparse.ArgumentParser) -> Iterator[Sentence]:
    yield Sentence("help", f"{name} --help", parser.format_help())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, command in action.choices.items():
                yield from _helps(f"{name} {word}", command)


def from_catalogue() -> Iterator[Sentence]:
    """The label and the help of every action of the console."""
    from console.actions.catalogue import CATALOGUE

    for action in CATALOGUE:
        yield Sentence("action", action.id, f"{action.label}: {action.help}")


def from_screens() -> Iterator[Sentence]:
    """What the recorded screens show."""
    for path in sorted((ROOT / "tests/ui/__snapshots__").rglob("*.raw")):
        yield _drawn(path)


def from_pictures() -> Iterator[Sentence]:
    """What the pictures of the README show."""
    for path in sorted((ROOT / "screenshots").glob("*.svg")):
        yield _drawn(path)


def _drawn(path: Path) -> Sentence:
    words = re.sub(r"<style.*?</style>|<[^>]+>", " ", path.read_text(), flags=re.S).replace("&#160;", " ")
    return Sentence("screen", path.name, re.sub(r"\s+", " ", words))


def from_documents() -> Iterator[Sentence]:
    """The manual, the example config, the mappings and the templates of the repository, paragraph by paragraph."""
    documents = [*ROOT.glob("*.md"), *ROOT.glob("*.yaml")]
    for folder in ("docs", "plugins", ".github"):
        documents += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".yaml", ".yml", ".json")]
    for path in sorted(documents):
        text = path.read_text()
        for found in re.finditer(r"(?:[^\n]+\n?)+", text):
            line = text.count("\n", 0, found.start()) + 1
            yield Sentence("document", f"{path.relative_to(ROOT)}:{line}", found[0])


def everything() -> list[Sentence]:
    collectors = (from_source, from_command_line, from_catalogue, from_screens, from_pictures, from_documents)
    return [sentence for collect in collectors for sentence in collect()]


BANNED = {
    "hand back": r"\bhand(?:s|ed|ing)?(?:\s+\w+){0,3}\s+back\b|\bhanding[ -]back\b",
    "needs eyes": r"\bneeds? eyes\b",
    "budget keep, budget fresh": r"\bbudgets?[ :]+(?:keep|fresh)\b|\bfresh budget\b",
    "conflicted": r"\bconflicted\b",
    "indeterminate": r"\bindeterminate\b",
    "whence": r"\bwhence\b",
    "told late": r"\btold late\b",
    "cannot be understood": r"\bcannot be understood\b",
    "--release": r"--release\b",
    "--group": r"--group\b",
}
"""Words that were replaced, with their inflections. Ordinary words (run, order, group, changed) are not among them."""


def banned_in(text: str) -> list[str]:
    """The replaced words in a text. An underscore in a name counts as a space."""
    words = text.replace("_", " ")
    return [word for word, pattern in BANNED.items() if re.search(pattern, words, re.I)]


TWISTED = {
    "whoever": r"\bwhoever\b",
    "of those that": r"\bof those (?:that|which|who)\b",
    "those for which": r"\bthose for which\b",
    "foretold": r"\b(?:foretold|heard)\b",
}
"""Phrases that make a sentence need a second reading. Names and comments in the code may use them."""


def twisted_in(text: str) -> list[str]:
    return [phrase for phrase, pattern in TWISTED.items() if re.search(pattern, text, re.I)]
