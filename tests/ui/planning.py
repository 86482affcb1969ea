"""Drives the plan in tests: waits for it, fills it in, confirms it."""

from __future__ import annotations

from textual.pilot import Pilot

from console.ui.screens.override import OverrideScreen
from console.ui.screens.plan import PlanScreen
from console.ui.widgets.choices import OptionRow, SwitchRow
from tests.ui.driving import failures, filtered, items, screen_text, until


async def planned(pilot: Pilot[None]) -> PlanScreen:
    """The plan that is open, once it is made."""
    await until(pilot, lambda: isinstance(pilot.app.screen, PlanScreen) and pilot.app.screen.plan)
    screen = pilot.app.screen
    assert isinstance(screen, PlanScreen)
    return screen


async def plan_of(pilot: Pilot[None], filter: str, *keys: str) -> PlanScreen:
    """Go to Failures, filter, press these keys, and wait for the plan."""
    await failures(pilot)
    await filtered(pilot, filter)
    await until(pilot, lambda: items(pilot).complete and items(pilot).item is not None)
    await pilot.press(*keys)
    return await planned(pilot)


def fill(screen: PlanScreen, reason: str, count: str = "") -> None:
    screen.query_one("#reason").value = reason  # type: ignore[attr-defined]
    screen.query_one("#count").value = count  # type: ignore[attr-defined]


async def choose(pilot: Pilot[None], screen: PlanScreen, row: str, value: str) -> None:
    """Choose an option with the arrow keys, and wait for the new plan."""
    options = screen.query_one(f"#{row}-row", OptionRow)
    values = [option.value for option in options.options]
    screen.set_focus(options)
    by = values.index(value) - options.chosen
    before = screen.plan
    await pilot.press(*["right" if by > 0 else "left"] * abs(by))
    await until(pilot, lambda: screen.plan is not None and (screen.plan is not before or not by))


async def pace(pilot: Pilot[None], screen: PlanScreen, text: str) -> None:
    """Type a pace of one's own, and wait for its plan."""
    options = screen.query_one("#pace-row", OptionRow)
    screen.set_focus(options)
    await pilot.press(*["right"] * len(options.options))
    await until(pilot, lambda: screen.query_one("#custom-pace").has_focus)
    screen.query_one("#custom-pace").value = text  # type: ignore[attr-defined]
    await until(pilot, lambda: screen.plan is not None and str(screen.plan.pace) == text)


def switch_ids(screen: PlanScreen) -> set[str]:
    return {switch.id for row in screen.query(SwitchRow) for switch in row.switches}


async def turn_on(pilot: Pilot[None], screen: PlanScreen, switch: str) -> None:
    """Turn a switch on with the keys, and wait for the new plan."""
    for row in screen.query(SwitchRow):
        for n, one in enumerate(row.switches):
            if one.id == switch:
                screen.set_focus(row)
                row.at = n
                await pilot.press("space")
    await until(pilot, lambda: screen.plan is not None and switch in screen.plan.operation.flags)


async def confirmed(pilot: Pilot[None], reason: str, key: str = "r") -> OverrideScreen:
    """What is under the cursor, planned, confirmed and written."""
    await pilot.press(key)
    return await confirm(pilot, await planned(pilot), reason)


async def confirm(pilot: Pilot[None], screen: PlanScreen, reason: str) -> OverrideScreen:
    """Confirm a plan, and wait until it is written."""
    assert screen.plan is not None
    fill(screen, reason, str(screen.plan.changes))
    await pilot.press("enter")
    await until(pilot, lambda: isinstance(pilot.app.screen, OverrideScreen) and not pilot.app.screen.followed.running)
    await until(pilot, lambda: "✓" in screen_text(pilot) or "■" in screen_text(pilot))
    override = pilot.app.screen
    assert isinstance(override, OverrideScreen)
    return override
