"""A packed block of plan rows reads back as it was, and anything else is noticed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.core.faults import PlanAltered
from console.core.plan import FIRST_SKIPPED, Block, PlanRow, pack, unpack

texts = st.text(max_size=5) | st.sampled_from(["\x1f", "\n", '"', "\\", "a\x1fb\nc", "\ud800", "\udcff"])
values = texts | st.integers() | st.none() | st.booleans()
images = st.none() | st.lists(values | st.lists(values, max_size=3), max_size=4).map(tuple)
rows = st.lists(st.tuples(texts, texts, images, st.none() | texts, st.none() | texts), min_size=1, max_size=8)


@given(rows, st.sampled_from([0, 7, FIRST_SKIPPED]))
def test_a_block_reads_back(lines: list[tuple[str, str, Any, str | None, str | None]], first: int) -> None:
    expected = [PlanRow(first + n, *line) for n, line in enumerate(lines)]
    assert unpack(pack(first, *zip(*lines, strict=True))) == expected


GOOD = json.loads(pack(0, ["a", "b"], ["", ""], [(1,), None], [None, None], ["w", None]).body)


@pytest.mark.parametrize(
    "body",
    [
        b"", b"not json", b"\xff", b"{}", b"[]", b"[1, 2, 3, 4]", b"null", json.dumps(GOOD[:3]).encode(),
        *(json.dumps([*GOOD[:n], ["x"], *GOOD[n + 1 :]]).encode() for n in range(6) if n != 4),
        *(json.dumps([*GOOD[:n], [{}, {}], *GOOD[n + 1 :]]).encode() for n in range(6)),
        *(json.dumps([*GOOD[:5], numbers]).encode() for numbers in ([0, 2], [0, -1], [0, True], [0])),
        json.dumps([*GOOD[:2], ["ab", "cd"], *GOOD[3:]]).encode(), b"[" * 100_000,
    ],
)
def test_a_block_of_anything_else_is_altered(body: bytes) -> None:
    with pytest.raises(PlanAltered):
        unpack(Block(0, 2, body))
