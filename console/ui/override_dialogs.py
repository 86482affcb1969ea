"""From a plan to its override: asks what must be asked before an override starts or goes on, then shows it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from textual.screen import Screen

from console.core.text import plural
from console.ui.backend_calls import off_loop
from console.ui.lazy_screens import OverrideScreen, PlanScreen, ProposedPlanScreen, ResumeScreen
from console.ui.screens.base import BaseScreen

if TYPE_CHECKING:
    from console.core.confirm import Confirmation
    from console.core.override import Override
    from console.core.plan import Plan, Selection
    from console.core.proposals import Proposal
    from console.ui.app import Console


class OverrideDialogs:
    """Opens the dialogs of one console. An override is planned, approved or resumed only while none is running."""

    def __init__(self, app: Console) -> None:
        self._app = app

    # -- planning ----------------------------------------------------------------------------------

    def plan(self, selection: Selection, action: str) -> None:
        """Preview an action on this selection; carry it out once it is confirmed."""
        self._open_plan(PlanScreen(selection, action))

    def plan_undo(self, override_id: str) -> None:
        """Preview the undo of an override; carry it out once it is confirmed."""
        self._open_plan(PlanScreen(None, undo_of=override_id))

    def _open_plan(self, screen: Screen[Any]) -> None:
        if not self._refuse_while_running():
            self._app.push_screen(screen, self._confirmed)

    def _refuse_while_running(self) -> bool:
        app = self._app
        if app.live_overrides.running:
            app.hint(f"An override is already running. Press {app.key('override')} to see it.", severity="warning")
        return app.live_overrides.running

    def _confirmed(self, answer: tuple[Plan, Confirmation] | None) -> None:
        if answer is not None:
            for screen in self._app.screen_stack:
                if isinstance(screen, BaseScreen):
                    screen.planned()
            self._app.live_overrides.carry_out(*answer)
            self.show_own()

    # -- approving ---------------------------------------------------------------------------------

    def show_proposal(self, proposal: Proposal) -> None:
        """Show the plan of a proposal, and what has changed since. It can be approved there."""
        self._app.push_screen(ProposedPlanScreen(proposal), partial(self._approved, proposal))

    def _approved(self, proposal: Proposal, answer: tuple[Plan, Confirmation] | None) -> None:
        if answer is not None and not self._refuse_while_running():
            plan, confirmation = answer
            self._app.live_overrides.approve(plan, proposal, confirmation.count, confirmation.reason)
            self.show_own()

    # -- resuming ----------------------------------------------------------------------------------

    async def report_unfinished(self) -> None:
        """Report overrides that a crash or a lost connection left unfinished."""
        app, trail = self._app, self._app.session.trail
        if trail is None:
            return
        unresolved = await off_loop(trail.unresolved)
        stopped = [o for o in await off_loop(lambda: trail.overrides(50)) if o.interrupted]
        if unresolved or stopped:
            count = len({intent.override_id for intent in unresolved} | {o.override_id for o in stopped})
            what = f"{count} {plural(count, 'override is', 'overrides are')}"
            resume = "" if app.session.read_only else f" and {app.key('resume', 'trail')} to resume"
            app.say(f"{what} not finished. Press {app.key('trail')} for the Trail{resume}.", severity="warning")

    def resume(self, override: Override) -> None:
        """Continue an override; ask first if it must be confirmed again."""
        if override.state.over:
            self._app.hint("This override is finished. There is nothing to resume.")
        elif not self._refuse_while_running():
            self._app.start(partial(self._resume, override), "resume")

    async def _resume(self, override: Override) -> None:
        trail, operations = self._app.session.trail, self._app.session.operations
        assert trail is not None
        assert operations is not None
        plan = await off_loop(lambda: trail.plan(override.plan_id))
        form = await off_loop(lambda: operations.resume_form(override.override_id))
        if form is None:
            self._continue(plan, override, None)
        else:
            answered = partial(self._resume_confirmed, plan, override)
            known = self._app.live_overrides.known(override.override_id)
            watched = known.results if known is not None else None
            results = watched.counts if watched is not None and watched.total else override.results
            self._app.push_screen(ResumeScreen(override, form, results), answered)

    def _resume_confirmed(self, plan: Plan, override: Override, count: int | None) -> None:
        if count is not None:
            self._continue(plan, override, count)

    def _continue(self, plan: Plan, override: Override, count: int | None) -> None:
        self._app.live_overrides.resume(plan, override.override_id, sum(override.counts.values()), count)
        self.show_own()

    # -- showing -----------------------------------------------------------------------------------

    def show(self, override: Override) -> None:
        """Open an override of the trail."""
        self._app.push_screen(OverrideScreen(self._app.live_overrides.of(override)))

    def show_own(self) -> None:
        """Show the override that this console carries out, and close what is on top of it."""
        app, own = self._app, self._app.live_overrides.latest
        stack = (screen for screen in app.screen_stack if isinstance(screen, BaseScreen))
        shown = [screen for screen in stack if screen.PLACE == "override"]
        if shown:
            app.close_above("override")
        if not any(getattr(screen, "followed", None) is own for screen in shown):
            if shown:
                app.pop_screen()
            app.push_screen(OverrideScreen(own))
