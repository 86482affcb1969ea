"""Run: how far an override is. Leaving the screen does not stop it."""

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
from console.core.release import Canary
from console.core.text import countdown
from console.ui import safe
from console.ui.actions import bindings_of
from console.ui.cells import Cell, thousands
from console.ui.lanes import off_loop
from console.ui.messages import RunChanged
from console.ui.runs import Run, fault_text
from console.ui.screens.place import Place
from console.ui.widgets.charts import bar
from console.ui.widgets.text_pane import Line, TextPane

_OUTCOMES = {
    OutcomeKind.CHANGED: ("✓ changed", "good"),
    OutcomeKind.CONFLICTED: ("≠ conflicted", "warning"),
    OutcomeKind.FAILED: ("✗ failed", "error"),
    OutcomeKind.INDETERMINATE: ("? not known", "error"),
}
_MEANING = {
    OutcomeKind.CONFLICTED: "not as previewed any more, untouched",
    OutcomeKind.FAILED: "their own write was refused by the backend",
    OutcomeKind.INDETERMINATE: "could not be read again; the trail keeps them open",
}


class RunScreen(Place):
    """The override this console carries out, or the last one it did."""

    PLACE = "run"
    TAB = "trail"
    BINDINGS: ClassVar[list[BindingType]] = list(bindings_of("run"))

    run_shown: reactive[Run | None] = reactive(None, always_update=True, init=False)

    def compose_place(self) -> ComposeResult:
        pane = TextPane(id="progress")
        pane.border_title = safe.phrase("[b]Override[/]")
        yield pane

    def on_mount(self) -> None:
        self.run_shown = self.console_app.runs.latest
        self.query_one(TextPane).focus()

    def on_resize(self) -> None:
        self.run_shown = self.console_app.runs.latest

    @on(RunChanged)
    def _moved_on(self) -> None:
        self._tick()
        self.refresh_bindings()

    def ticked(self) -> None:
        self.run_shown = self.console_app.runs.latest

    def watch_run_shown(self, run: Run | None) -> None:
        self.query_one(TextPane).lines = tuple(self._told(run)) if run is not None else ()

    def _told(self, run: Run) -> Iterator[Line]:
        progress = run.progress
        total = run.plan.changes
        done = progress.done if progress else 0
        share = done / max(total, 1)
        yield from self._headline(run)
        yield []
        wide = max(min(self.size.width - 30, 60), 10)
        yield [
            Cell(bar(share, wide).ljust(wide, "░"), "calm"),
            Cell(f"  {share:4.0%}   {thousands(done)} of {thousands(total)}"),
        ]
        yield []
        for kind, (words, tone) in _OUTCOMES.items():
            count = progress.counts[kind] if progress else 0
            yield _tally(words, count, tone, _MEANING.get(kind, ""))
        yield _tally("– skipped", run.plan.selected - total, "muted", "blocked when it was planned, untouched")
        yield []
        yield from self._pace(run)
        if progress and progress.stage:
            yield [Cell("  at            ", "muted"), Cell(safe.line(progress.stage))]
        if progress and progress.note:
            yield [Cell("  note          ", "muted"), Cell(safe.line(progress.note, 400))]
        yield [Cell("  release       ", "muted"), Cell(safe.line(str(run.plan.release)))]
        yield [Cell("  selected      ", "muted"), Cell(safe.line(run.plan.selection, 400))]
        yield [
            Cell("  override      ", "muted"),
            Cell(f"{run.op_id or '…'}   plan {run.plan.id}  {run.plan.hash[:16]}…", "muted"),
        ]

    def _pace(self, run: Run) -> Iterator[Line]:
        """A rate that counts the waiting says nothing about what is left."""
        progress = run.progress
        if not run.over and progress is not None and progress.judged_by is not None:
            yield [
                Cell("  waits         ", "muted"),
                Cell(f"for the canary to be judged, until {progress.judged_by:%H:%M:%S}Z at the latest", "accent"),
            ]
            return
        if _is_paused(run):
            return
        yield [Cell("  rate          ", "muted"), Cell(f"{thousands(round(run.rate))} per second" if run.rate else "–")]
        if not run.over and run.rate and progress is not None and not isinstance(run.plan.release, Canary):
            left = timedelta(seconds=(run.plan.changes - progress.done) / run.rate)
            yield [Cell("  left          ", "muted"), Cell(f"about {countdown(left)}")]

    def _headline(self, run: Run) -> Iterator[Line]:
        if run.fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_text(run.fault), 600), "error")]
        elif run.override is not None:
            state = run.override.state
            tone = "good" if state is OverrideState.FINISHED else "warning"
            sign = "✓" if state is OverrideState.FINISHED else "■"
            yield [
                Cell(f"{sign} {state}", tone),
                Cell(f"   {safe.line(run.override.note, 400)}" if run.override.note else ""),
            ]
            if state is OverrideState.STOPPED:
                yield [Cell("  It can be resumed from the Trail.", "muted")]
        elif _is_paused(run):
            yield [Cell("‖ paused", "warning"), Cell("   c goes on, x stops", "muted")]
        elif run.progress is not None and run.progress.judged_by is not None:
            yield [Cell("▸ waits for the canary", "calm"), Cell("   esc leaves it running", "muted")]
        else:
            yield [Cell("▸ running", "calm"), Cell("   esc leaves it running", "muted")]

    # -- actions -----------------------------------------------------------------------------------

    def has(self, need: str) -> bool:  # noqa: ARG002
        return self.console_app.runs.running

    def _ask(self, what: str) -> None:
        run, operations = self.console_app.runs.latest, self.desk.operations
        if run is None or run.op_id is None or operations is None:
            return
        asked = {"pause": operations.pause, "proceed": operations.proceed, "stop": operations.stop}[what]
        self.start(partial(off_loop, partial(asked, run.op_id)), "ask", exclusive=False)
        self.console_app.say(
            {"pause": "Pausing after this chunk", "proceed": "Going on", "stop": "Stopping after this chunk"}[what]
        )

    def action_pause(self) -> None:
        self._ask("pause")

    def action_proceed(self) -> None:
        self._ask("proceed")

    def action_stop(self) -> None:
        self._ask("stop")

    def action_back(self) -> None:
        self.dismiss(None)


def _is_paused(run: Run) -> bool:
    return not run.over and run.progress is not None and run.progress.note == "paused"


def _tally(words: str, count: int, tone: str, meaning: str) -> Line:
    number = f"  {safe.fit(words, 14)}{safe.fit(thousands(count), 10, right=True)}  "
    return [Cell(number, tone if count else "muted"), Cell(meaning if count else "", "muted")]
