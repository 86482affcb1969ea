"""Under a real terminal: a table, colour that can be switched off, and no sequence but colour."""

from __future__ import annotations

import re
import sys
from typing import Any

import pexpect
import pytest

from tests.cli.place import Place, environment, failed
from tests.patience import PATIENCE

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_OTHER = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def seen(place: Place, *arguments: str, width: int = 80, **env: str) -> str:
    command = ["-m", "console", "--config", str(place.write_config()), *arguments]
    surroundings: Any = {**environment(place.folder), "TERM": "xterm-256color", **env}
    surroundings.pop("COLUMNS")
    child = pexpect.spawn(sys.executable, command, env=surroundings, dimensions=(24, width), encoding="utf-8", timeout=PATIENCE, use_poll=True)
    text: str = child.read()
    child.close()
    assert child.exitstatus == 0
    return text


@pytest.fixture
def hostile(place: Place) -> Place:
    place.queue("one", failed("a", "\x1b[2J\x1b]52;c;eA==\x07 \x9b31m \u202e"), failed("b", "plain " * 50))
    return place


@pytest.mark.parametrize("arguments", [("list",), ("causes",), ("check",), ("show", "one/a"), ("upcoming",)])
def test_nothing_but_colour_reaches_the_terminal(hostile: Place, arguments: tuple[str, ...]) -> None:
    assert not _OTHER.search(_COLOUR.sub("", seen(hostile, *arguments)))


def test_a_terminal_gets_a_table_as_wide_as_it_is(hostile: Place) -> None:
    for width in (80, 160):
        lines = _COLOUR.sub("", seen(hostile, "list", width=width)).splitlines()
        assert lines[0].startswith("key")
        assert max(map(len, lines)) <= width
        assert len(lines) == 3


def test_no_color_is_respected(hostile: Place) -> None:
    coloured = re.compile(r"\x1b\[[0-9;]*3[0-7]")
    assert coloured.search(seen(hostile, "list"))
    assert not coloured.search(seen(hostile, "list", NO_COLOR="1"))
    assert "⊗ terminal" in seen(hostile, "list", NO_COLOR="1")
