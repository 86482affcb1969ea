"""A strict YAML reader: every value keeps its line, and nothing is guessed.

Plain scalars follow a small core schema: `true`/`false`, `null`, decimal numbers; all else is text. So `no`,
`12:30` and `010` are text, whatever YAML 1.1 says. Anchors, aliases and tags are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import yaml
from yaml.composer import Composer
from yaml.events import AliasEvent, NodeEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import BaseResolver
from yaml.scanner import Scanner

from console.core.faults import ConfigFault
from console.core.text import did_you_mean

Loc = tuple[str | int, ...]
"""Where in the config: keys and list positions from the top."""
Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]

MAX_DEPTH = 16
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?(?:0|[1-9][0-9]*)\.[0-9]+")
_WORDS: Mapping[str, bool | None] = {
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")
_TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels"
_PROBLEMS = (
    (_TOO_DEEP, _TOO_DEEP),
    ("'\\t'", "a tab in the indentation. Indent with spaces."),
    ("another document", "a second document starts here. Keep one, and remove the ---."),
    ("but got '{'", "a { where , or } should be. Inside {…} put ${NAME} in quotes."),
    ("tag handle", "tags (!…) are not allowed. Put the value in quotes."),
)


class Mistake(NamedTuple):
    """One thing to correct: where it is and what is wrong. Never quotes a value, which may be a secret."""

    line: int
    loc: Loc
    what: str

    def text(self, file: str) -> str:
        where = f"{file}:{self.line}" if self.line else file
        return f"{where}: {dotted(self.loc)}: {self.what}" if self.loc else f"{where}: {self.what}"


class UnusableConfig(ConfigFault):
    """The configuration has mistakes"""

    def __init__(self, file: str, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(sorted(set(mistakes), key=lambda m: (m.line, str(m.loc), m.what)))
        super().__init__("\n".join(mistake.text(file) for mistake in self.mistakes))

    def __str__(self) -> str:
        return self.detail


def dotted(loc: Loc) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{printable(part)}"
    return text.removeprefix(".")


def printable(name: str) -> str:
    """A name that fits on one line of a terminal: short, with control characters escaped."""
    short = name if len(name) <= 60 else f"{name[:59]}…"
    return short if short.isprintable() else repr(short)[1:-1]


def unknown_key(name: str, known: Iterable[str]) -> str:
    return f"unknown key. {did_you_mean(name.lower(), known)}"



@dataclass(frozen=True, slots=True)
class Tree:
    """A parsed file: plain values, the line of each, and the mistakes found so far."""

    file: str
    values: dict[str, Value] = field(default_factory=dict, repr=False)
    lines: dict[Loc, int] = field(default_factory=dict, repr=False)
    mistakes: list[Mistake] = field(default_factory=list)


OnText = Callable[[str, Loc], str]
"""Called with every text value; returns it expanded. A ValueError is a mistake at that place."""


def parse(text: str, file: str, on_text: OnText) -> Tree:
    """Parse the text. Raises UnusableConfig when parsing cannot continue; other mistakes are collected."""
    tree = Tree(file)
    try:
        root = _compose(text, tree.mistakes)
    except _Unreadable as stop:
        raise UnusableConfig(file, [*tree.mistakes, stop.mistake]) from None
    tree.values.update(_TreeBuilder(tree, on_text).mapping(root, ()))
    return tree


class _Unreadable(Exception):
    def __init__(self, line: int, what: str) -> None:
        self.mistake = Mistake(line, (), what)


def _compose(text: str, mistakes: list[Mistake]) -> MappingNode:
    if control := Reader.NON_PRINTABLE.search(text):
        line = text.count("\n", 0, control.start()) + 1
        raise _Unreadable(line, "not a text file: it contains a control character")
    composer = _Strict(text, mistakes)
    try:
        root = composer.get_single_node()
    except yaml.MarkedYAMLError as error:
        raise _Unreadable(*_syntax(error)) from None
    except (yaml.YAMLError, ValueError, OverflowError, IndexError):
        raise _Unreadable(composer.line + 1, "not valid YAML: an escape or number is out of range") from None
    if root is None:
        raise _Unreadable(0, "the file is empty. Start from config.example.yaml.")
    if not isinstance(root, MappingNode):
        raise _Unreadable(_line(root), "expected the sections console: and backends: at the top")
    return root


class _Strict(Reader, Scanner, Parser, Composer, BaseResolver):
    """Composes nodes and records what is not allowed. Tags are never resolved, and no objects are constructed."""

    def __init__(self, text: str, mistakes: list[Mistake]) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)
        Composer.__init__(self)
        BaseResolver.__init__(self)
        self.mistakes = mistakes
        self._depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            self.get_event()  # type: ignore[no-untyped-call]
            self._refuse(line, "aliases (*name) are not allowed. Write the value out, or put it in quotes.")
            return ScalarNode("", "", event.start_mark, event.end_mark)  # type: ignore[arg-type]
        if isinstance(event, NodeEvent) and event.anchor is not None:
            self._refuse(line, "anchors (&name) are not allowed. Remove it, or put the value in quotes.")
            event.anchor = None
        if getattr(event, "tag", None) is not None:
            self._refuse(line, "tags (!…) are not allowed. Put the value in quotes.")
        if self._depth >= MAX_DEPTH:
            raise yaml.MarkedYAMLError(problem=_TOO_DEEP, problem_mark=event.start_mark)
        self._depth += 1
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refuse(self, line: int, what: str) -> None:
        self.mistakes.append(Mistake(line, (), what))


def _syntax(error: yaml.MarkedYAMLError) -> tuple[int, str]:
    mark = error.problem_mark or error.context_mark
    problem = error.problem or error.context or "cannot be read"
    what = next((words for part, words in _PROBLEMS if part in problem), f"not valid YAML: {problem}")
    return (mark.line + 1 if mark else 0), what


class _TreeBuilder:
    """Turns nodes into plain values, and records lines and mistakes in the tree."""

    def __init__(self, tree: Tree, on_text: OnText) -> None:
        self._tree = tree
        self._on_text = on_text

    def mapping(self, node: MappingNode, loc: Loc) -> dict[str, Value]:
        values: dict[str, Value] = {}
        for key_node, value_node in node.value:
            key = _scalar(key_node) if isinstance(key_node, ScalarNode) else None
            if not isinstance(key, str):
                self._note(_line(key_node), loc, "a key must be text. Put it in quotes.")
            elif _CONTROL.search(key):
                self._note(_line(key_node), loc, f"the key {printable(key)} contains a control character")
            elif key in values:
                first = self._tree.lines[(*loc, key)]
                self._note(_line(key_node), (*loc, key), f"duplicate key, first in line {first}. Keep one.")
            else:
                self._tree.lines[(*loc, key)] = _line(key_node)
                values[key] = self.value(value_node, (*loc, key))
        return values

    def value(self, node: Node, loc: Loc) -> Value:
        if isinstance(node, MappingNode):
            return self.mapping(node, loc)
        if isinstance(node, SequenceNode):
            return [self._element(child, (*loc, place)) for place, child in enumerate(node.value)]
        value = _scalar(node)
        return self._text(value, _line(node), loc) if isinstance(value, str) else value

    def _element(self, node: Node, loc: Loc) -> Value:
        self._tree.lines[loc] = _line(node)
        return self.value(node, loc)

    def _text(self, value: str, line: int, loc: Loc) -> str:
        try:
            value = self._on_text(value, loc)
        except ValueError as problem:
            self._note(line, loc, str(problem))
        else:
            if _CONTROL.search(value):
                self._note(line, loc, "contains a control character. Remove it.")
        return _CONTROL.sub("", value)

    def _note(self, line: int, loc: Loc, what: str) -> None:
        self._tree.mistakes.append(Mistake(line, loc, what))


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _scalar(node: Node) -> Value:
    text = str(node.value)
    if getattr(node, "style", None) is not None:
        return text
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    return text
