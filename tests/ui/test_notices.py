"""Nothing ends silently: a toast, the bell, a desktop notification and a badge, whatever screen is open."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from textual.pilot import Pilot

from console.core.confirm import Confirmation
from console.core.event_hooks import EventHooks
from console.core.events import EventKind, OverrideEvent
from console.testing import FrozenClock
from console.trail.store import TrailStore
from console.ui.notices import desktop_notification
from console.ui.screens.failures import FailuresScreen
from console.ui.screens.override import OverrideScreen
from tests.ui.driving import console, opened, screen_text, toasts, until
from tests.ui.planning import fill, pace, plan_of
from tests.ui.world import small_world, with_trail

EVENT = OverrideEvent(EventKind.STOPPED, "o1", "Override o1 stopped: Canary failed; 4 of 5 failed again.", bad=True)
TIMEOUTS = "condition:terminal error~timeout backend:analysis-queue"


@pytest.mark.parametrize(
    ("environment", "sent"),
    [
        ({"TERM": "xterm-kitty"}, "\x1b]9;Retriage: a, b\a"),
        ({"TERM": "xterm-256color", "VTE_VERSION": "7200"}, "\x1b]777;notify;Retriage;a, b\a"),
        ({"TERM": "foot"}, "\x1b]777;notify;Retriage;a, b\a"),
        ({"TERM": "linux"}, ""),
        ({}, ""),
    ],
)
def test_the_terminal_is_sent_the_sequence_it_knows(environment: dict[str, str], sent: str) -> None:
    assert desktop_notification("a; b", environment) == sent


def test_no_text_can_end_the_sequence_early() -> None:
    sent = desktop_notification("x\x1b]52;c;ZXZpbA==\a\x9c\n" + "y" * 999, {"TERM": "xterm"})
    assert sent.count("\x1b") == 1
    assert sent.count("\a") == 1
    assert not any(char in sent for char in "\n\x9c\x00")
    assert len(sent) < 250


def sequences_sent(pilot: Pilot[None], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is sent to the terminal besides the screen: the bell and notifications."""
    sent: list[str] = []
    app = console(pilot)
    monkeypatch.setattr(app, "bell", lambda: sent.append("bell"))
    monkeypatch.setattr(app, "send_to_terminal", sent.append)
    return sent


@pytest.mark.parametrize("notify", [True, False])
async def test_the_end_of_an_override_is_announced_on_every_screen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, notify: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    given = replace(with_trail(small_world(tmp_path, 300), tmp_path), notify=notify)
    async with opened(given) as pilot:
        sent = sequences_sent(pilot, monkeypatch)
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        await pace(pilot, screen, "canary 5")
        fill(screen, "a canary first", str(screen.plan.changes))  # type: ignore[union-attr]
        await pilot.press("enter")
        await until(pilot, lambda: "○○○○○" in screen_text(pilot))
        await pilot.press("2")
        await until(pilot, lambda: isinstance(pilot.app.screen, FailuresScreen))
        assert "Override !" not in screen_text(pilot)
        override_id = console(pilot).live_overrides.latest.override_id  # type: ignore[union-attr]
        given.operations.stop(override_id)  # type: ignore[union-attr, arg-type]
        await until(pilot, lambda: f"Override {override_id} stopped: 5 requeued. Stopped on request." in toasts(pilot))
        await until(pilot, lambda: "Override !" in screen_text(pilot))
        assert sent[0] == "bell"
        assert ("".join(sent[1:]).startswith("\x1b]9;Retriage: Override o")) is notify
        await pilot.press("5")
        await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen) and "■ Stopped" in screen_text(pilot))
        await until(pilot, lambda: "Override !" not in screen_text(pilot))


async def test_an_override_that_another_console_takes_over_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This console was suspended for over a minute. What it was doing goes on elsewhere, and it says so."""
    monkeypatch.setenv("TERM", "xterm")
    world = small_world(tmp_path, 60)
    given, other = with_trail(world, tmp_path), with_trail(world, tmp_path)
    async with opened(given) as pilot:
        sent = sequences_sent(pilot, monkeypatch)
        screen = await plan_of(pilot, TIMEOUTS, "A", "r")
        await pace(pilot, screen, "canary 5")
        fill(screen, "a canary first", str(screen.plan.changes))  # type: ignore[union-attr]
        await pilot.press("enter")
        await until(pilot, lambda: "○○○○○" in screen_text(pilot))
        followed = console(pilot).live_overrides.latest
        assert followed is not None
        assert followed.override_id is not None
        await pilot.press("2")
        with closing(sqlite3.connect(tmp_path / "state" / "trail.db", timeout=30, isolation_level=None)) as trail:
            trail.execute("UPDATE lease SET heartbeat = '2001-01-01T00:00:00.000000Z'")
        assert isinstance(other.trail, TrailStore)
        confirmation = Confirmation(other.who, other.origin, "it was silent", None)
        other.trail.take_over(followed.override_id, "another process", other.clock.now(), confirmation)
        said = f"Override {followed.override_id} was taken over by another process."
        await until(pilot, lambda: said in toasts(pilot))
        await until(pilot, lambda: "Override !" in screen_text(pilot))
        assert sent[0] == "bell"
        assert said in "".join(sent)
        await pilot.press("5")
        await until(pilot, lambda: "Another process has taken over this override" in screen_text(pilot))
        await until(pilot, lambda: "▸ Running" in screen_text(pilot))


class Failing:
    name, place = "chat", "nowhere"

    def call(self, payload: str) -> str:
        return "no [bold]line[/]" if EVENT.text in payload else "another event"


async def test_a_hook_that_fails_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted: list[str] = []
    hooks = EventHooks([Failing()], FrozenClock(), noted.append)
    async with opened(replace(with_trail(small_world(tmp_path, 60), tmp_path), event_hooks=hooks)) as pilot:
        sequences_sent(pilot, monkeypatch)
        hooks(EVENT)
        await until(pilot, lambda: "Hook chat (nowhere): no [bold]line[/]" in toasts(pilot))
    assert noted == []
    hooks(EVENT)
    hooks.close()
    assert noted == ["Hook chat (nowhere): no [bold]line[/]"], "the console has closed"


async def test_a_badge_stays_until_the_override_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(with_trail(small_world(tmp_path, 60), tmp_path)) as pilot:
        sequences_sent(pilot, monkeypatch)
        app = console(pilot)
        for place in ("1", "2", "3", "4"):
            await pilot.press(place)
            app.override_happened(EVENT)
            await until(pilot, lambda: EVENT.text in toasts(pilot))
        assert app._news == {"o1"}
        app.seen("o1")
        assert not app._news
