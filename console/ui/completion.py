"""Completes what is typed into the filter bar: fields, conditions, systems, types and saved views."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from console.core.item import Condition
from console.core.query import Field
from console.core.query_parser import quoted_word

_FIELDS = {
    Field.BACKEND: "backend:", Field.CONDITION: "condition:", Field.TYPE: "type:", Field.STATUS: "status:",
    Field.KEY: "key:", Field.ERROR: "error~", Field.CAUSE: "cause:", Field.ATTEMPTS: "attempts>=",
    Field.CREATED: "created<", Field.UPDATED: "updated<", Field.NEXT: "next<", Field.RECOVERABLE: "recoverable:",
}
_OPERATORS = ":~<>="


class Completion(NamedTuple):
    """A text that could stand where the typed one stands."""

    text: str
    start: int
    """Where in the input the replaced text begins."""
    end: int
    whole: bool = False
    """It replaces everything that is typed: a saved view."""

    @property
    def names_field(self) -> bool:
        return self.text[-1:] in _OPERATORS


@dataclass(slots=True)
class Vocabulary:
    """The words that only this session knows."""

    systems: Sequence[str] = ()
    views: dict[str, str] = field(default_factory=dict)
    types: set[str] = field(default_factory=set)

    def values_of(self, name: str) -> Iterable[str]:
        match name:
            case "backend":
                return self.systems
            case "condition":
                return [str(condition) for condition in Condition]
            case "type":
                return map(quoted_word, sorted(self.types))
            case "recoverable":
                return ("yes", "no")
            case _:
                return ()


def completions(text: str, cursor: int, vocabulary: Vocabulary) -> list[Completion]:
    """What could stand where the cursor is, in the order of the language."""
    start = text.rfind(" ", 0, cursor) + 1
    if text.count('"', 0, cursor) % 2:
        return []
    word = text[start:cursor]
    bare = word.removeprefix("-")
    begin = start + len(word) - len(bare)
    at = next((n for n, char in enumerate(bare) if char in _OPERATORS), None)
    if at is not None:
        return _values(bare, at, begin, cursor, vocabulary)
    low = bare.lower()
    fields = [shown for name, shown in _FIELDS.items() if name.startswith(low) and low]
    found = [Completion(shown, begin, cursor) for shown in fields]
    if not text[:start].strip() and not text[cursor:].strip():
        views = [view for name, view in vocabulary.views.items() if low and name.lower().startswith(low)]
        found += [Completion(view, 0, len(text), whole=True) for view in views]
    return found


def _values(bare: str, at: int, begin: int, cursor: int, vocabulary: Vocabulary) -> list[Completion]:
    after = at + 1
    comma = bare.rfind(",", after)
    first = after if comma < 0 else comma + 1
    typed = bare[first:].lower()
    given = {value.strip().lower() for value in bare[after:].split(",")[:-1]}
    values = vocabulary.values_of(bare[:at].lower())
    fitting = [v for v in values if v.lower().startswith(typed) and v.lower() != typed and v.lower() not in given]
    return [Completion(value, begin + first, cursor) for value in fitting]


def completed(text: str, chosen: Completion) -> tuple[str, int]:
    """The text with the completion in it, and where the cursor is then."""
    if chosen.whole:
        return chosen.text, len(chosen.text)
    done = text[: chosen.start] + chosen.text
    return done + text[chosen.end :], len(done)
