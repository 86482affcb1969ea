"""Hostile text in every row, record, name and answer, and every key of every place pressed on it, under a real pty.

What is forbidden is looked for in the bytes the terminal was sent: the sequences of our own are taken out, and
nothing may be left that a terminal would act on.
"""

from __future__ import annotations

import base64
import re
import sqlite3
import sys
import textwrap
from pathlib import Path

import pytest

from console.actions.catalogue import CATALOGUE, EVERYWHERE, PLACES, KeyAction, actions_of
from tests.depth import campaign
from tests.ui.terminal import Terminal
from tests.ui.test_hostile import PAYLOADS, hostile_world

WIKI = "https://wiki.example/runbook"
SCRIPT = textwrap.dedent("""
    import sys
    from dataclasses import replace
    from pathlib import Path
    from console.core.backend import Attempts, Operation
    from console.core.confirm import Confirmation, Origin, Who
    from console.core.plan import Marked
    from console.core.pace import Now
    from console.ui.app import run_console
    from tests.patience import PATIENCE
    from tests.ui.test_hostile import HOSTILE_TYPES, PAYLOADS
    from tests.ui.world import open_queue, session, with_trail
    folder = Path(sys.argv[1])
    texts = [p.decode("latin-1") if isinstance(p, bytes) else p[:300] for p in PAYLOADS.values()]
    everything = " ".join(texts)[:1500]
    given = session(
        [open_queue(folder / "hostile.db", "hostile", types=HOSTILE_TYPES)],
        views={text[:80]: "error~x" for text in texts},
        runbooks={"a": sys.argv[2], "x": "https://wiki/\\x1b[31m[/b]"},
        operator=everything, who=Who(0, everything[:60], everything), origin=Origin(everything, everything, everything, 1, "0"),
    )
    given = with_trail(given, folder)
    keys = [item.key for item in given.backends[0].page(__import__("console.core.backend", fromlist=["PageRequest"]).PageRequest(
        __import__("console.core.query", fromlist=["Filter"]).Filter(), given.clock.now())).items]
    plan = given.operations.propose(Marked(keys[6:7]), Operation(attempts=Attempts.RESET), Now())
    if plan.changes:
        given.approvals.submit(plan, everything, everything)
    for text, key in zip(texts[:6], keys):
        plan = given.operations.propose(Marked((key,)), Operation(attempts=Attempts.RESET), Now())
        if plan.changes:
            given.operations.carry_out(plan, Confirmation(given.who, given.origin, text or "-", plan.changes, text or None))
    sys.exit(run_console(lambda: given, systems=['hostile'], deadline=PATIENCE))
""")
WAYS = {
    "overview": [("1", "retries, next")],
    "failures": [("2", "next retry")],
    "causes": [("3", "causes of")],
    "trail": [("4", "refusal")],
    "proposals": [("6", "submitted  ")],
    "item": [("2", "next retry"), ("\r", "native row")],
    "override": [("4", "refusal"), ("\r", "started  ")],
    "override_items": [("4", "refusal"), ("\r", "started  "), ("\r", "in override")],
}
KEYS = {
    "enter": "\r", "slash": "/", "space": " ", "escape": "\x1b", "question_mark": "?", "down": "j", "up": "k",
    "ctrl+r": "\x12", "ctrl+g": "\x07", "ctrl+p": "\x10", "ctrl+t": "\x14", "tab": "\t", "shift+up": "\x1b[1;2A",
    "shift+down": "\x1b[1;2B", "right": "\x1b[C", "left": "\x1b[D",
}  # fmt: skip
OURS = re.compile(
    rb"\x1b\[[0-9;:?<>=]*\$?[a-zA-Z~]|\x1b\]22;[a-z-]*\x07|\x1b\]52;c;(?P<copied>[A-Za-z0-9+/=]*)\x07"
    rb"|\x1b\]8;(?:id=[0-9-]+)?;(?P<leads>[!-~]*)\x1b\\"
    rb"|\x07\x1b\](?:9;|777;notify;)[^\x00-\x1f\x7f]*\x07"  # the bell and a notification, without controls in it
    rb"|(?:\x1b(?:[\[\]][0-9;:?<>=$]*)?)?\x18(?=\x1b)"  # a stalled terminal reads again: CAN ends what was cut off
    rb"|(?:[\xc2-\xdf]|[\xe0-\xef][\x80-\xbf]?|[\xf0-\xf4][\x80-\xbf]{0,2})(?=\x18\x1b)"  # so does half a character
)
LEFT_OVER = frozenset(map(chr, (*range(0x20), *range(0x7F, 0xA0)))) | set("\u202e\u2066\u2069\u200b\u2060\ufeff\u2028")


@pytest.fixture
def terminal(tmp_path: Path) -> Terminal:
    hostile_world(tmp_path)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), WIKI]
    return Terminal(command, (50, 160), {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)})


def require_clean(sent: bytes) -> None:
    for found in OURS.finditer(sent):
        if found["leads"]:
            assert found["leads"].decode() == WIKI
        if found["copied"]:
            assert base64.b64decode(found["copied"]) != b"evil"
    left = OURS.sub(b"", sent).decode("utf-8")
    found = [left[max(n - 20, 0) : n + 40] for n, char in enumerate(left) if char in LEFT_OVER - {"\r", "\n"}]
    assert not found, found[:5]
    for forbidden in (b"\x1b[2J\x1b[31mred", b"\x1b[1m\x1b]0;t"):
        assert forbidden not in sent


def pressed(terminal: Terminal, action: KeyAction) -> None:
    key = action.key.split(",")[-1]
    terminal.press(KEYS.get(key, key))
    terminal.read()
    terminal.press("\x1b")
    terminal.read()
    terminal.press("\x1b")
    terminal.read()


def requeue_one(terminal: Terminal) -> None:
    """So that there is a run to look at; its reason is all the payloads that can be typed."""
    terminal.press("2")
    terminal.until("next retry")
    terminal.press("r")
    terminal.until("will be requeued")
    terminal.press("[@click=app.exit]reason[/] \u202e\u200b[/x]")
    terminal.until("reason[/] [/x]")
    terminal.read()
    terminal.press("\r")
    terminal.until("✓")


def open_place(terminal: Terminal, place: str) -> None:
    for key, words in WAYS[place]:
        terminal.press_until(key, words)


@campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("place", PLACES)
def test_every_key_of_every_place(terminal: Terminal, tmp_path: Path, place: str) -> None:
    terminal.until("retries, next")
    if place == "override":
        requeue_one(terminal)
    everywhere = [action for action in actions_of(EVERYWHERE) if place == "overview" or action.name == "help"]
    for action in (*actions_of(place), *everywhere):
        if action.id != "app.quit":
            open_place(terminal, place)
            pressed(terminal, action)
    open_place(terminal, "overview")
    terminal.press_until("\x10", "type to filter")  # the palette: every action by name
    terminal.press_until("\x1b", "● live")
    terminal.press_until("1", "retries, next")
    terminal.press("q")
    assert terminal.left() == 0
    require_clean(terminal.sent)
    with sqlite3.connect(tmp_path / "hostile.db") as db:
        (untouched,) = db.execute("SELECT count(*) FROM async_tasks WHERE status = 'FAILED'").fetchone()
    assert untouched >= len(PAYLOADS) - 7  # those requeued above, and nothing else


def test_every_place_can_be_reached() -> None:
    assert set(WAYS) == set(PLACES)
    assert {action.place for action in CATALOGUE} == {*PLACES, EVERYWHERE}
