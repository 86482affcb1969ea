"""No sentence the product can say uses a word that was replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.words import sentences
from tests.words.__main__ import main
from tests.words.sentences import ROOT, Sentence, banned_in


@pytest.mark.parametrize(
    "collect",
    [
        sentences.from_source,
        sentences.from_command_line,
        sentences.from_catalogue,
        sentences.from_screens,
        sentences.from_pictures,
        sentences.from_documents,
    ],
)
def test_no_sentence_uses_a_replaced_word(collect: Callable[[], Iterable[Sentence]]) -> None:
    found = [(s.where, words, s.text[:120]) for s in collect() if (words := banned_in(s.text))]
    assert not found


def test_no_source_file_uses_a_replaced_word() -> None:
    """Names, comments and docstrings too: the code uses the words of the screen."""
    found = []
    for folder in ("console", "plugins", "tests", "benchmarks", "screenshots"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if path.parent == Path(__file__).parent:
                continue
            if words := banned_in(path.read_text()):
                found.append((str(path.relative_to(ROOT)), words))
    assert not found


def test_every_kind_of_sentence_is_found() -> None:
    """The collectors still see what they are meant to see."""
    kinds = Counter(sentence.kind for sentence in sentences.everything())
    for kind, at_least in {"fault": 100, "finding": 20, "help": 40, "action": 40, "text": 300, "screen": 20}.items():
        assert kinds[kind] >= at_least, kinds


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("hand it back", "hand back"),
        ("items were handed back", "hand back"),
        ("what Needs Eyes", "needs eyes"),
        ("use budget fresh", "budget keep, budget fresh"),
        ("conflicted: 3", "conflicted"),
        ("apply --release now", "--release"),
        ("plan --group 7f3a", "--group"),
    ],
)
def test_a_replaced_word_is_recognised(text: str, word: str) -> None:
    assert banned_in(text) == [word]


@pytest.mark.parametrize("text", ["run the command", "in this order", "a group of items", "changed since the plan",
                                  "on the other hand, go back", "released lease", "grouping"])
def test_ordinary_words_are_not_banned(text: str) -> None:
    assert not banned_in(text)


def test_the_list_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["fault"])
    printed = capsys.readouterr().out
    assert "== fault" in printed
    assert "console/core/faults.py" in printed
