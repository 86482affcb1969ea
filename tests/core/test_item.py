from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from console.core.faults import KeyFault
from console.core.item import ItemKey, is_backend_name

any_text = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)


@given(st.from_regex(r"[a-z0-9-]{1,8}", fullmatch=True), st.lists(any_text, min_size=1, max_size=4))
@example("q", ["\udcc3\udca9"])
@example("q", ["\ud83d", "\udca5"])
@example("q", ["\udcff %uD800"])
@example("q", [""])
@example("q", [" a/b%2F\n", "..", "é"])
def test_any_key_reads_back(backend: str, parts: list[str]) -> None:
    key = ItemKey(backend, tuple(parts))
    text = str(key)
    assert ItemKey.parse(text) == key
    assert ItemKey.parse(f"  {text} ") == key
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text
    assert ItemKey.known(backend, text) == key


@pytest.mark.parametrize(
    ("parts", "id"),
    [
        (("b4a147d7-2f15",), "b4a147d7-2f15"),
        (("a b", "c/d"), "a%20b/c%2Fd"),
        (("é",), "%C3%A9"),
        (("\udcff",), "%FF"),
        (("\ud83d",), "%uD83D"),
        (("%uD83D",), "%25uD83D"),
    ],
)
def test_how_a_key_is_written(parts: tuple[str, ...], id: str) -> None:
    assert ItemKey("q", parts).id == id
    assert ItemKey.parse(f"q/{id}").parts == parts


@pytest.mark.parametrize("text", ["", "queue", "Queue/1", "/1", "a b/1", "q\u00fc/1"])
def test_what_is_no_key(text: str) -> None:
    with pytest.raises(KeyFault, match=r"A key looks like backend/id"):
        ItemKey.parse(text)


@pytest.mark.parametrize(("name", "fits"), [("queue-1", True), ("", False), ("A", False), ("a_b", False), ("a\n", False)])
def test_backend_names(name: str, fits: bool) -> None:
    assert is_backend_name(name) is fits
