"""Screens whose modules are imported when they are first needed, to keep the start short."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_screen(module: str, name: str) -> Callable[..., Any]:
    """A screen whose module is imported when it is first made."""
    return lambda *args, **more: getattr(import_module(f"console.ui.screens.{module}"), name)(*args, **more)


MODES = {
    "overview": lazy_screen("overview", "OverviewScreen"),
    "failures": lazy_screen("failures", "FailuresScreen"),
    "causes": lazy_screen("causes", "CausesScreen"),
    "trail": lazy_screen("trail", "TrailScreen"),
    "proposals": lazy_screen("proposals", "ProposalsScreen"),
}
"""The screen of each place, as Textual's modes."""
ItemScreen, HelpScreen = lazy_screen("item", "ItemScreen"), lazy_screen("help", "HelpScreen")
PlanScreen, OverrideScreen = lazy_screen("plan", "PlanScreen"), lazy_screen("override", "OverrideScreen")
ProposedPlanScreen = lazy_screen("proposals", "ProposedPlanScreen")
ResumeScreen, QuitScreen = lazy_screen("confirm", "ResumeScreen"), lazy_screen("confirm", "QuitScreen")
PickScreen, CommandScreen = lazy_screen("pick", "PickScreen"), lazy_screen("pick", "CommandScreen")


def import_place(place: str) -> None:
    """Import the screen of a place."""
    import_module(f"console.ui.screens.{place}")


def import_all() -> None:
    """Import what a person may open next, so that no key has to wait for it."""
    for module in (*MODES, "item", "arrange", "export", "help", "pick", "override"):
        import_module(f"console.ui.screens.{module}")
