"""No sentence the product can say uses a word that was replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from tests.words import sentences
from tests.words.__main__ import main
from tests.words.sentences import ROOT, Sentence, banned_in, twisted_in


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


@pytest.mark.parametrize(
    "collect",
    [sentences.from_source, sentences.from_command_line, sentences.from_catalogue, sentences.from_documents],
)
def test_no_sentence_is_twisted(collect: Callable[[], Iterable[Sentence]]) -> None:
    assert not [(s.where, phrases, s.text[:120]) for s in collect() if (phrases := twisted_in(s.text))]


@pytest.mark.parametrize("text", ["Whoever can write it", "the oldest of those that failed", "Those for which it says so"])
def test_a_twisted_phrase_is_recognised(text: str) -> None:
    assert twisted_in(text)


def test_no_file_uses_a_replaced_word() -> None:
    """Names, comments and docstrings too: the code uses the words of the screen."""
    folders = ("console", "plugins", "tests", "benchmarks", "screenshots", "docs", ".github", ".ci")
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.is_file()]
    files += [path for path in sorted(ROOT.iterdir()) if path.is_file()]
    found = []
    for path in files:
        if path.parent == Path(__file__).parent or path.suffix in (".png", ".pyc", ".raw"):
            continue
        if words := banned_in(path.read_text(errors="replace")):
            found.append((str(path.relative_to(ROOT)), words))
    assert not found
    assert len(files) > 700


def test_every_kind_of_sentence_is_found() -> None:
    """The collectors still see what they are meant to see."""
    kinds = Counter(sentence.kind for sentence in sentences.everything())
    for kind, at_least in {"fault": 100, "finding": 20, "help": 40, "action": 40, "text": 300, "screen": 20}.items():
        assert kinds[kind] >= at_least, kinds


SAID = '''
class LostFault(Fault):
    """The item was handed back"""

def go(app, count):
    """A docstring is for readers of the code."""
    raise LostFault(f"{count} items need eyes", fix="Use budget fresh.")
    raise sub.OtherFault(detail=text if count else "told late")
    app.notify("conflicted" + " items")
    yield Finding(Severity.ERROR, "guard", f"{'is' if count else 'are'} indeterminate", fix="Use --release now.")
    Notice("It " + f"was {count} times handed back.")
    parser.add_argument("--x", help="whence it came")
    print("cannot be understood")

class OtherFault(LostFault):
    """Also told late"""
'''


def test_a_replaced_word_is_found_wherever_it_is_said() -> None:
    found = Counter((s.kind, word) for s in sentences.in_modules({"a.py": SAID}) for word in banned_in(s.text))
    assert found == Counter(
        {
            ("fault", "hand back"): 1, ("fault", "needs eyes"): 1, ("fault", "budget keep, budget fresh"): 1,
            ("fault", "told late"): 2, ("finding", "indeterminate"): 1, ("finding", "--release"): 1,
            ("plan", "hand back"): 1, ("help", "whence"): 1, ("text", "cannot be understood"): 1,
        }
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("hand it back", "hand back"),
        ("def _hand_back(self): ...", "hand back"),
        ("test_a_row_is_conflicted_once", "conflicted"),
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
