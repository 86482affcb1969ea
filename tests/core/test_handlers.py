"""Whatever a handler returns or raises can be kept, and says what it said where that is possible."""

from __future__ import annotations

import json

import pytest

from console.core.handlers import as_json, as_text, message_of


class Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")

    __repr__ = __str__


def deep() -> object:
    made: list[object] = []
    for _ in range(200_000):
        made = [made]
    return made


@pytest.mark.parametrize(("result", "kept"), [
    ({"a": [1, None, "é"]}, {"a": [1, None, "é"]}), ({(1, 2): 3}, "{(1, 2): 3}"), (float("nan"), "nan"),
    ("bad \udce9", "'bad \\udce9'"), ("bad \0", "'bad \\x00'"), (Silent(), "Silent"), (deep(), "list"), (None, None),
], ids=range(8))
def test_a_result_is_json_that_any_column_takes(result: object, kept: object) -> None:
    said = as_json(result)
    assert json.loads(said) == kept
    assert "\\u0000" not in said
    said.encode()


def test_a_message_is_text_that_any_column_takes() -> None:
    assert as_text("bad \udce9 \0 é") == "bad \\udce9 \\x00 é"
    assert message_of(ValueError("bad \udce9")) == "bad \\udce9"
    assert [message_of(ValueError()), message_of(Silent())] == ["ValueError", "Silent"]
