"""What is kept column by column is the same as the rows it stands for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.core.backend import Change, image_text, image_texts
from console.core.changes import Changes, SoleKeys
from console.core.faults import PlanAltered
from console.core.item import ItemKey
from console.core.packing import FIRST_BLOCKED, Block, PlanRow, pack, unpack

texts = st.text(max_size=5) | st.sampled_from(["\x1f", "\n", "\x1e", "a\x1fb\nc", "\ud800"])
parts = st.text(min_size=1, max_size=4) | st.sampled_from(["a/b", "%41", "é", "ä\udcff"])


@given(st.lists(st.tuples(texts, texts, texts), min_size=1, max_size=8), st.integers(0, 8), st.integers(0, 8))
def test_a_block_reads_back(lines: list[tuple[str, str, str]], start: int, end: int) -> None:
    expected = [PlanRow(7 + n, *line, None) for n, line in enumerate(lines)]
    rows = unpack(pack(7, *zip(*lines, strict=True)))
    assert list(rows) == expected
    assert [rows[n] for n in range(len(rows))] == expected
    assert list(rows[start:end]) == expected[start:end]
    assert list(rows[:start] + rows[start:]) == expected
    assert list(rows.only([n % 2 for n in range(len(rows))])) == expected[1::2]


@pytest.mark.parametrize("first", [0, FIRST_BLOCKED])
@pytest.mark.parametrize(
    "body", [b"", b"a\x1fb", b"a\x1fb\x1fc\x1fd\x1fe\na", b"a\x1fb\x1fc\nd\x1fe\x1ff\ng\x1fh\x1fi", b"\x1e{}", b"\x1e[1, 2]",
             b'\x1e[["a", "b", "c"], ["d"]]', b"\x1enot json", b"\xff\x1f\x1f\n\x1f\x1f"]
)
def test_a_block_of_anything_else_is_altered(first: int, body: bytes) -> None:
    with pytest.raises(PlanAltered):
        unpack(Block(first, 2, body))


values = st.one_of(
    texts, st.sampled_from(["", '"', "\\", "FAILED", "é", "\x7f", "2026-11-17T03:00:00+00:00"]), st.integers(),
    st.sampled_from([0, 1, True, False, 1.0]), st.none(),
)
columns_alike = st.integers(1, 6).flatmap(
    lambda rows: st.lists(
        st.one_of(
            values.map(lambda value: [value] * rows),
            st.lists(texts, min_size=rows, max_size=rows),
            st.lists(st.integers(), min_size=rows, max_size=rows),
            st.lists(values, min_size=rows, max_size=rows),
        ),
        min_size=1, max_size=4,
    )
)


@given(columns_alike)
def test_images_of_many_are_the_images_of_each(columns: list[list[object]]) -> None:
    assert image_texts(columns) == [image_text(row) for row in zip(*columns, strict=True)]


@given(st.lists(parts, min_size=1, max_size=5), st.integers(0, 5))
def test_sole_keys_are_the_keys_they_were_written_from(ids: list[str], cut: int) -> None:
    keys = [(ItemKey("queue", (id,)),) for id in ids]
    sole = SoleKeys("queue", [str(key) for (key,) in keys])
    assert list(sole) == keys
    assert list(sole[cut:]) == keys[cut:]
    assert sole.ids() in (None, ids)


def test_ids_are_given_only_where_they_are_plain() -> None:
    assert SoleKeys("q", ["q/a", "q/b-1"]).ids() == ["a", "b-1"]
    assert SoleKeys("q", ["q/a", "q/b/c"]).ids() is None
    assert SoleKeys("q", ["q/a", "q/%2F"]).ids() is None


def test_changes_of_a_list_are_that_list() -> None:
    some = [Change(str(n), (ItemKey("q", (str(n),)),), ("old", n), ("new", n)) for n in range(3)]
    assert list(Changes.of(some)) == some
    assert Changes.of(Changes.of(some)[1:])[0] == some[1]
    assert list(Changes.of([])) == []
