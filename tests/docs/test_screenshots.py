"""The README's pictures: every one is there in both forms, and the script still takes them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.depth import campaign

FOLDER = Path(__file__).parents[2] / "screenshots"
README = (FOLDER.parent / "README.md").read_text()
SCRIPT = runpy.run_path(str(FOLDER / "make.py"))
NAMES = list(SCRIPT["PICTURES"])


@pytest.mark.parametrize("name", NAMES)
def test_every_picture_is_there_and_used(name: str) -> None:
    assert (FOLDER / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert ElementTree.parse(FOLDER / f"{name}.svg").getroot().tag.endswith("svg")
    assert f"](screenshots/{name}.png)" in README


def test_no_picture_is_left_over() -> None:
    assert {path.stem for path in FOLDER.iterdir() if path.suffix in (".png", ".svg")} == {*NAMES, "incident"}


@campaign
def test_the_script_takes_them_anew(tmp_path: Path) -> None:
    SCRIPT["main"](["overview", "plan"], tmp_path, pixels=False)
    words = {name: re.sub(r"<[^>]+>|&#160;", " ", (tmp_path / f"{name}.svg").read_text()) for name in ("overview", "plan")}
    assert "storm" in words["overview"]
    assert "Skipped, not touched" in words["plan"]
