"""Override, live: the progress of the override this console carries out. It continues when the screen is left."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.reactive import reactive

from console.core.backend import OutcomeKind
from console.core.override import OverrideState
from console.core.pace import Canary
from console.core.text import countdown
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.advice import fault_text
from console.ui.backend_calls import off_loop
from console.ui.cells import Cell, thousands
from console.ui.live_overrides import LiveOverride
from console.ui.messages import OverrideProgressed
from console.ui.outcomes import SKIPPED_LOOK, OutcomeLook, outcome_look
from console.ui.screens.base import BaseScreen
from console.ui.widgets.charts import bar
from console.ui.widgets.text_pane import Line, TextPane


class LiveOverrideScreen(BaseScreen):
    """The override this console carries out, or the last one it did."""

    PLACE = "live_override"
    TAB = "trail"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("live_override"))

    live: reactive[LiveOverride | None] = reactive(None, always_update=True, init=False)

    def compose_content(self) -> ComposeResult:
        pane = TextPane(id="progress")
        pane.border_title = safe.phrase("[b]Override[/]")
        yield pane

    def on_mount(self) -> None:
        self.live = self.console_app.live_overrides.latest
        self.query_one(TextPane).focus()

    def on_resize(self) -> None:
        self.live = self.console_app.live_overrides.latest

    @on(OverrideProgressed)
    def _progressed(self) -> None:
        self.update_each_second()
        self.refresh_bindings()

    def ticked(self) -> None:
        self.live = self.console_app.live_overrides.latest

    def watch_live(self, live: LiveOverride | None) -> None:
        self.query_one(TextPane).lines = tuple(self._lines(live)) if live is not None else ()

    def _lines(self, live: LiveOverride) -> Iterator[Line]:
        progress = live.progress
        total = live.plan.changes
        done = progress.done if progress else 0
        fraction = done / max(total, 1)
        yield from self._headline(live)
        yield []
        width = max(min(self.size.width - 30, 60), 10)
        yield [
            Cell(bar(fraction, width).ljust(width, "░"), "calm"),
            Cell(f"  {fraction:4.0%}   {thousands(done)} of {thousands(total)}"),
        ]
        yield []
        actions = self.console_app.session.actions
        for kind in OutcomeKind:
            count = progress.counts[kind] if progress else 0
            yield _count_line(outcome_look(kind, live.plan.operation.action, actions), count)
        yield _count_line(SKIPPED_LOOK, live.plan.selected - total)
        yield []
        yield from self._speed(live)
        if progress and progress.stage and not live.over:
            yield _pair("now at", progress.stage)
        if progress and progress.note:
            yield _pair("note", progress.note)
        yield _pair("pace", str(live.plan.pace))
        yield _pair("selection", live.plan.selection)
        yield _pair("override", f"{live.override_id or '…'}   plan {live.plan.id}  {live.plan.hash[:16]}…", "muted")

    def _speed(self, live: LiveOverride) -> Iterator[Line]:
        """The rate and the time left; nothing during a pause or a canary."""
        progress = live.progress
        if _is_paused(live) or (not live.over and progress is not None and progress.judged_by is not None):
            return
        yield _pair("rate", f"{thousands(round(live.rate))} per second" if live.rate else "–")
        if not live.over and live.rate and progress is not None and not isinstance(live.plan.pace, Canary):
            left = timedelta(seconds=(live.plan.changes - progress.done) / live.rate)
            yield _pair("time left", f"about {countdown(left)}")

    def _headline(self, live: LiveOverride) -> Iterator[Line]:
        leave = Cell("   Press esc to leave. It keeps running.", "muted")
        if live.fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_text(live.fault), 600), "error")]
        elif live.override is not None:
            state = live.override.state
            finished = state is OverrideState.FINISHED
            note = f"   {safe.line(live.override.note, 400)}" if live.override.note else ""
            yield [Cell(f"{'✓' if finished else '■'} {state}", "good" if finished else "warning"), Cell(note)]
            if state is OverrideState.STOPPED:
                yield [Cell("  To continue, press 4 for the Trail and x to resume it there.", "muted")]
        elif _is_paused(live):
            yield [Cell("‖ paused", "warning"), Cell("   Press c to continue or x to stop.", "muted")]
        elif live.progress is not None and live.progress.judged_by is not None:
            until = f"{live.progress.judged_by:%H:%M:%S}Z"
            yield [Cell("▸ waiting for the canary", "calm"), Cell(f"  (gives up at {until})", "accent"), leave]
        else:
            yield [Cell("▸ running", "calm"), leave]

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:  # noqa: ARG002
        return self.console_app.live_overrides.running

    def _request(self, what: str) -> None:
        live, operations = self.console_app.live_overrides.latest, self.session.operations
        if live is None or live.override_id is None or operations is None:
            return
        request, words = {
            "pause": (operations.pause, "Pausing after this chunk"),
            "proceed": (operations.proceed, "Continuing"),
            "stop": (operations.stop, "Stopping after this chunk"),
        }[what]
        self.start(partial(off_loop, partial(request, live.override_id)), "request", exclusive=False)
        self.console_app.say(words)

    def action_pause(self) -> None:
        self._request("pause")

    def action_proceed(self) -> None:
        self._request("proceed")

    def action_stop(self) -> None:
        self._request("stop")

    def action_back(self) -> None:
        self.dismiss(None)


def _is_paused(live: LiveOverride) -> bool:
    return not live.over and live.progress is not None and live.progress.paused


def _count_line(look: OutcomeLook, count: int) -> Line:
    text = f"  {safe.fit(f'{look.sign} {look.word}', 25)}{safe.fit(thousands(count), 9, right=True)}  "
    return [Cell(text, look.tone if count else "muted"), Cell(look.meaning if count else "", "muted")]


def _pair(name: str, value: str, tone: str = "plain") -> Line:
    return [Cell(f"  {name:<14}", "muted"), Cell(safe.line(value, 400), tone)]
