"""A chunk's columns are what looking at each of its changes would find."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from console.core.changes import Changes, SoleKeys
from console.core.item import ItemKey
from console.sql.guarded import Target
from console.sql.guarded_postgres import _PLACE, _keys, _places

IDS = st.one_of(
    st.integers(-(10**19), 10**19).map(str),
    st.sampled_from(["0", "-0", "00", "007", "1\n2", "1,2", "", "1/2", "%31", "a", "٣", " 1", "1 "]),
)
REST = st.sampled_from(["vectorization", "", "dp update", "\n", "%", "x/y", "1"])
UNITS = st.sampled_from([
    "7@(0,1)", "8@(12345,67)", "", "9@", "(1,2)@(3,4)", "a\n@(5,6)", "5@(7,8)x", "6@(٣,1)", "\n", "(1,2)",
    "(1,2)\n(3,4)",
])


@given(st.lists(st.tuples(IDS, REST), min_size=1, max_size=6), st.integers(1, 2))
def test_keys(parts: list[tuple[str, str]], width: int) -> None:
    keys = [ItemKey("analyses", one[:width]) for one in parts]
    target = Target("t", "id", ("a",), integer_key=True, key_parts=width)
    count = len(keys)
    changes = Changes([""] * count, SoleKeys("analyses", list(map(str, keys))), [()] * count, [()] * count)
    found = [None if key is None else str(key) for key in _keys(changes, target)]
    assert found == [None if (key := target.key_of(one)) is None else str(key) for one in keys]


@given(st.lists(UNITS, min_size=1, max_size=6))
def test_places(units: list[str]) -> None:
    assert list(_places(units)) == [found[0] if (found := _PLACE(unit)) else None for unit in units]
