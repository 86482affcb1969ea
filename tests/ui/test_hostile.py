"""Whatever a row holds, no control byte reaches the screen, nothing crashes, no action runs."""

from __future__ import annotations

import ast
import sqlite3
from datetime import timedelta
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.core.faults import BackendFault
from console.ui import safe
from console.ui.app import Console
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.item import ItemScreen
from console.ui.widgets.cause_list import CauseList
from tests.ui.driving import WIDE, failures, items, opened, screen_text, until
from tests.ui.world import NOON, at, make_async, open_queue, session

PAYLOADS = {
    "escape": "\x1b[2J\x1b[31mred",
    "osc52": "\x1b]52;c;ZXZpbA==\x07",
    "osc8": "\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\",
    "c1": "\x9b31m\x9d52;c;x\x9c",
    "nul and bell": "a\x00b\x07c\x08d\x7f",
    "click markup": "[@click=app.exit]quit[/]",
    "broken markup": "[/foo] [b",
    "link markup": "[link=http://evil]x[/link]",
    "json": '{"list[int]": ["a", [1]]}',
    "bidi": "abc\u202egnp.exe\u2066\u2069",
    "zero width": "a\u200bb\u200cc\u2060d\ufeff",
    "combining": "z" + "\u0301" * 1000,
    "wide": "漢字🙂" * 50,
    "newlines": "one\r\ntwo\x0bthree\u2028four",
    "long": "x" * 300_000,
    "tags": "a\U000e0041\U000e0042",
    "dollar": "$foo ${bar} $name",
    "surrogate": b"caf\xe9 \xff\xfe",
}
HOSTILE_TYPES = [(p if isinstance(p, str) else p.decode("latin-1"))[:400] for p in PAYLOADS.values()]
"""Types that the workers of the hostile queue take, so that its tasks can be requeued."""
RAW = frozenset(chr(n) for n in (*range(0x20), *range(0x7F, 0xA0))) | set(
    "\u202e\u2066\u2069\u200b\u2060\ufeff\u2028"
) - {"\n"}


def hostile_world(folder: Path) -> Path:
    path = folder / "hostile.db"
    make_async(path, 0)
    with sqlite3.connect(path) as db:
        for n, payload in enumerate(PAYLOADS.values()):
            text = payload if isinstance(payload, str) else payload.decode("latin-1")
            error = payload if n % 2 else text
            short = text[:400]
            db.execute(
                "INSERT INTO async_tasks VALUES (?,?,?,?,?,?,CAST(? AS TEXT),?,?)",
                (f"{n}-{short}", short, short, "FAILED", 4, at(NOON), error, at(NOON), at(NOON - timedelta(minutes=n))),
            )
        db.execute(
            "INSERT INTO async_tasks VALUES ('odd', 'T', 'e', 'FAILED', ?, ?, 'x', ?, ?)",
            ("\x1b[1m", "\x1b]0;t\x07", "[b]", "[/x]"),
        )
    return path


def require_clean(pilot: Pilot[None]) -> None:
    text = screen_text(pilot).replace("\n", "")
    assert not RAW & set(text), sorted(RAW & set(text))
    assert pilot.app._exit is False


async def test_every_place_shows_every_payload(tmp_path: Path) -> None:
    given = session(
        [open_queue(hostile_world(tmp_path), "hostile")],
        views={"[@click=app.exit]v": "error~\x1b"},
        runbooks={"x": "https://wiki/\x1b[31m[/b]"},
    )
    async with opened(given, WIDE) as pilot:
        await until(pilot, lambda: "terminal" in screen_text(pilot))
        require_clean(pilot)
        await failures(pilot)
        table = items(pilot)
        await until(pilot, lambda: table.complete)
        require_clean(pilot)
        for row in range(table.total()):
            item = table.item_at(row)
            assert item is not None
            pilot.app.push_screen(ItemScreen(item))
            await until(pilot, lambda: isinstance(pilot.app.screen, ItemScreen) and pilot.app.screen._detail)
            require_clean(pilot)
            await pilot.app.pop_screen()
        await pilot.press("space", "y", "f")
        await pilot.pause()
        require_clean(pilot)
        await pilot.press("escape", "3")
        await until(pilot, lambda: pilot.app.screen.query_one(CauseList).causes)
        require_clean(pilot)
        await pilot.press("question_mark")
        require_clean(pilot)


async def test_faults_and_notifications_are_harmless(tmp_path: Path) -> None:
    given = session([open_queue(hostile_world(tmp_path), "hostile")])
    async with opened(given) as pilot:
        app = pilot.app
        assert isinstance(app, Console)
        for payload in PAYLOADS.values():
            text = payload if isinstance(payload, str) else payload.decode("utf-8", "surrogateescape")
            app.say(text)
            app.copy(text, text[:50])
            assert app.clipboard == text
            app.monitor._failed("hostile", "counts", BackendFault(text))
            await pilot.pause()
            require_clean(pilot)
        await pilot.press("colon")
        pilot.app.screen.query_one("QueryInput").value = "\x1b[31m[/x]"  # type: ignore[attr-defined]
        await pilot.pause()
        require_clean(pilot)


async def test_a_click_on_hostile_text_runs_nothing(tmp_path: Path) -> None:
    given = session([open_queue(hostile_world(tmp_path), "hostile")])
    async with opened(given) as pilot:
        await failures(pilot)
        table = items(pilot)
        await until(pilot, lambda: table.complete)
        for row in range(1, 9):
            await pilot.click(table, offset=(30, row))
            await pilot.click(table, offset=(110, row))
        assert isinstance(pilot.app.screen, FailuresScreen)
        require_clean(pilot)


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_safe_text_is_safe(payload: str | bytes) -> None:
    text = payload if isinstance(payload, str) else payload.decode("utf-8", "surrogateescape")
    for shown in (safe.line(text), safe.shown(text).plain, safe.phrase("[b]$x[/]", x=text).plain, *safe.lines(text)):
        assert not RAW & set(shown)
    assert len(safe.line(text)) <= 2_400


# --- nothing goes around it ---------------------------------------------------------------------------

UI = Path(safe.__file__).parent
SHOWING = {
    "Static",
    "Label",
    "Button",
    "Option",
    "notify",
    "update",
    "Content",
    "from_markup",
    "styled",
    "Checkbox",
    "Text",
}
"""What takes text and puts it on the screen, or makes what is put there."""
OURS = {"safe", "cells", "self"}


def _is_safe(node: ast.expr) -> bool:
    """A literal, our own markup of literals and names of ours, or something a function of ours made."""
    match node:
        case ast.Constant():
            return True
        case ast.JoinedStr(values=values):
            return all(isinstance(v, ast.Constant) or _formats_safely(v) for v in values)
        case ast.Call(func=ast.Attribute(value=ast.Name(id="safe"))):
            return True
        case ast.Call(func=ast.Name(id="Content") | ast.Attribute(value=ast.Name(id="Content"))):
            return True  # looked at itself
        case ast.Call(func=ast.Attribute(attr="truncate" | "assemble" | "join")):
            return True
        case ast.Name(id=name) if name.isupper() or name.startswith("_"):
            return True  # a constant of the module
        case ast.Call(func=ast.Name(id="thousands" | "spark" | "bar")):
            return True
        case ast.Call(func=ast.Attribute(value=ast.Name(id="self"), attr=name)):
            return name.startswith("_")  # a method of the same widget, looked at itself
        case ast.IfExp(body=body, orelse=orelse):
            return _is_safe(body) and _is_safe(orelse)
        case ast.BinOp(left=left, right=right):
            return _is_safe(left) and _is_safe(right)
        case ast.Attribute(value=ast.Name(id="action")):
            return True  # the catalogue is ours
        case _:
            return False


def _formats_safely(value: ast.expr) -> bool:
    assert isinstance(value, ast.FormattedValue)
    return isinstance(value.value, ast.Name | ast.IfExp | ast.Call | ast.Constant) or _is_safe(value.value)


ALLOWED = {
    ("safe.py", "Content"),
    ("safe.py", "from_markup"),
    ("safe.py", "styled"),
    ("upcoming_chart.py", "styled"),  # block characters of a chart, and its axis
    ("app.py", "notify"),  # `say` makes the text safe and turns markup off
}


@pytest.mark.parametrize("path", sorted(UI.rglob("*.py")), ids=lambda path: str(path.relative_to(UI)))
def test_nothing_shows_text_except_through_safe(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        if name not in SHOWING or (path.name, name) in ALLOWED or (name == "update" and not _is_widget_update(node)):
            continue
        assert _is_safe(node.args[0]), f"{path.name}:{node.lineno}: {ast.unparse(node)}"


def _is_widget_update(node: ast.Call) -> bool:
    return not isinstance(node.args[0], ast.Dict | ast.Set)
