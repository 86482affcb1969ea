"""What is shown of an override: its headline, its canary, its figures and the facts of its record."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from console.core.backend import Action, OutcomeKind
from console.core.canary import CanaryProgress
from console.core.override import SKIPPED, Actions, Override, OverrideState
from console.core.pace import Canary
from console.core.recovery import Result, ResultCounts
from console.core.text import countdown, instant
from console.ui import safe
from console.ui.advice import Switches, fault_text, switch_name
from console.ui.cells import Cell, moment, thousands
from console.ui.live_overrides import FollowedOverride
from console.ui.outcomes import outcome_look, result_look
from console.ui.widgets.text_pane import Line

_DOTS = 20
"""A canary of at most this many items is drawn as dots."""
_BAR = 10
_CAUSE_SHOWN, _CAUSES_SHOWN = 60, 2
_NAME_WIDTH = 18
NOT_READ = "not read"
SAME_CAUSE, OTHER_CAUSE = "same cause", "other causes"
_WITH = {SAME_CAUSE: "the same cause", OTHER_CAUSE: "another cause"}

_NAMES = {
    "action": "action",
    "flags": "switches",
    "attempts": "attempts",
    "pace": "pace",
    "selection": "selection",
    "undo_of": "undo of",
    "count": "confirmed",
    "facts.login": "login",
    "facts.uid": "uid",
    "facts.uid_outside": "uid outside",
    "facts.loginuid": "logged in as",
    "facts.audit_session": "audit session",
    "facts.host": "host",
    "facts.tty": "terminal",
    "facts.pid": "process",
    "facts.preloaded": "preloaded",
    "facts.version": "version",
    "claims.name": "claims to be",
    "claims.login": "claims login",
    "claims.uid_outside": "claims uid outside",
    "claims.host": "claims host",
    "claims.ssh_peer": "claims ssh from",
    "claims.sudo_user": "claims sudo by",
    "clock_behind": "clock behind",
    "plan_id": "plan",
    "plan_hash": "plan hash",
}
"""The fields of the confirmation that are shown, in this order."""


class Figure(NamedTuple):
    """One number of an override, and which items are behind it."""

    id: str
    """An `OutcomeKind`, a `Result`, "skipped", "same cause", "other causes" or "not read"."""
    sign: str
    label: str
    items: int
    tone: str
    share: float = 0.0
    """The share of all items, drawn as a bar."""
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class OverrideView:
    """An override at one moment."""

    followed: FollowedOverride
    override: Override | None
    """As the trail has it; None in its first moments."""
    now: datetime
    actions: Actions
    switches: Switches
    errors: Mapping[str, str] = field(default_factory=dict)
    """Causes with one of their errors, as far as the lists have shown one: the record of a result has none."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The outcomes of its items so far."""
        progress = self.followed.progress
        if progress is not None and self.followed.running:
            return {kind.value: count for kind, count in progress.counts.items()}
        return self.override.counts if self.override is not None else {}

    @property
    def results(self) -> ResultCounts | None:
        """The results of its items so far."""
        if self.followed.results is not None and self.followed.results.total:
            return self.followed.results.counts
        if self.override is not None and self.override.result is not None:
            return ResultCounts.of_record(self.override.result)
        return None

    @property
    def total(self) -> int:
        """How many items it changes."""
        if self.followed.plan is not None:
            return self.followed.plan.changes
        return int(self.override.confirmed.get("items", 0)) if self.override is not None else 0

    @property
    def selected(self) -> int:
        if self.followed.plan is not None:
            return self.followed.plan.selected
        parts = self.override.confirmed.get("parts", ()) if self.override is not None else ()
        return sum(int(part.get("selected", 0)) for part in parts)

    @property
    def action(self) -> str:
        plan = self.followed.plan
        return str(plan.operation.action) if plan is not None else self.override.action if self.override else ""

    @property
    def is_paused(self) -> bool:
        progress = self.followed.progress
        if self.followed.running:
            return progress is not None and progress.paused
        return self.override is not None and self.override.state is OverrideState.PAUSED

    @property
    def state(self) -> OverrideState:
        if self.followed.running:
            return OverrideState.PAUSED if self.is_paused else OverrideState.RUNNING
        return self.override.state if self.override is not None else OverrideState.STOPPED

    # -- what it is --------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What is done to how many items, such as "Requeue 165"."""
        verb = (self.action or "override").capitalize()
        return f"{verb} {thousands(self.total)}" if self.total else verb

    @property
    def selection(self) -> str:
        plan = self.followed.plan
        return plan.selection if plan is not None else str(self.confirmed.get("selection", ""))

    @property
    def confirmed(self) -> Mapping[str, Any]:
        return self.override.confirmed if self.override is not None else {}

    @property
    def causes(self) -> list[str]:
        """The signatures of its items, as far as they are known."""
        plan = self.followed.plan
        return list(plan.by_cause) if plan is not None else list(self.confirmed.get("causes") or ())

    def by_whom(self) -> str:
        """Who started it, and its pace."""
        plan = self.followed.plan
        pace = str(plan.pace) if plan is not None else str(self.confirmed.get("pace", ""))
        who = self.override.who if self.override is not None else ""
        return " · ".join(part for part in (who, pace) if part)

    # -- the headline ------------------------------------------------------------------------------

    def headline(self) -> Iterator[Line]:
        """What is going on, or how it ended, and what to do now."""
        followed, override = self.followed, self.override
        if followed.fault is not None:
            yield [Cell("✗ ", "error"), Cell(safe.line(fault_text(followed.fault), 600), "error")]
        if followed.running:
            yield from self._while_running()
        elif override is not None:
            yield from self._afterwards(override)

    def _while_running(self) -> Iterator[Line]:
        progress = self.followed.progress
        if self.is_paused:
            yield [Cell("‖ Paused", "warning"), Cell("   p continues it", "muted")]
        elif progress is not None and progress.judged_by is not None:
            until = f"gives up at {progress.judged_by:%H:%M:%S}Z"
            yield [Cell("▸ Waiting for the canary", "calm"), Cell(f"   {until}", "accent")]
        else:
            yield [Cell("▸ Running", "calm"), Cell(self._speed())]
        if progress is not None and progress.note and progress.canary is None:  # the steps say the same
            yield [Cell("  "), Cell(safe.line(progress.note, 400), "muted")]
        if not self.is_paused:
            yield [Cell("  "), Cell("You can leave this screen; it goes on.", "muted")]

    def _speed(self) -> str:
        """The rate and the time left; nothing during a canary."""
        plan, progress, rate = self.followed.plan, self.followed.progress, self.followed.rate
        if plan is None or progress is None or not rate or isinstance(plan.pace, Canary):
            return ""
        left = timedelta(seconds=(plan.changes - progress.done) / rate)
        return f"   {thousands(round(rate))} per second, about {countdown(left)} left"

    def _afterwards(self, override: Override) -> Iterator[Line]:
        if override.undone_by:
            yield [Cell("↶ Undone", "warning"), Cell(f"   by override {', '.join(override.undone_by)}")]
        if override.undo_of:
            yield [Cell("↶ ", "muted"), Cell(f"This is the undo of override {override.undo_of}.", "muted")]
        if override.state is OverrideState.FINISHED:
            yield self._finished()
        elif override.state is OverrideState.STOPPED:
            yield [Cell("■ Stopped", "warning"), Cell("   " + self._result_line() if self.results else "")]
        elif override.state is OverrideState.PAUSED:
            yield [Cell("‖ Paused", "warning"), Cell("   p continues it", "muted")]
        elif override.state is OverrideState.QUEUED:
            yield [Cell("… Queued", "calm"), Cell("   a runner carries it out", "muted")]
        else:
            alive = "It is carried out by another process." if override.alive else "Its process is gone. p resumes it."
            yield [Cell("▸ Running" if override.alive else "! Abandoned", "calm" if override.alive else "error"),
                   Cell(f"   {alive}", "muted")]
        if note := override.note_beside(self.results):
            yield [Cell("  "), Cell(safe.line(note, 600))]

    def _finished(self) -> Line:
        watched = self.followed.results
        if self.results is None:
            if self.action != Action.REQUEUE or not self.counts.get(OutcomeKind.APPLIED):
                return [Cell("✓ Finished", "good")]  # there is nothing to watch
            now = "now watching the items" if self.followed.watched else "enter shows the results"
            return [Cell("✓ Written", "good"), Cell(f"   {now}", "muted")]
        if watched is not None and not watched.over:
            until = f" until {watched.ends_at:%H:%M:%S}Z at the latest" if watched.ends_at is not None else ""
            line = f"   {self._result_line()}; watching{until}"
            return [Cell("✓ Written", "good"), Cell(line)]
        counts = self.results.counts
        if counts[Result.FAILED_AGAIN]:
            return [Cell("✗ ", "error"), Cell(self._result_line())]
        if counts[Result.RECOVERED] + counts[Result.CHANGED_BY_OTHERS] < self.results.total:
            return [Cell(f"? {self._result_line()}", "warning")]
        return [Cell(f"✓ {self._result_line()}", "good")]

    def _result_line(self) -> str:
        """One line: "162 of 165 recovered, 3 failed again: CARD_DECLINED"."""
        results = self.results
        if results is None:
            return ""
        live = self.followed.results
        text = live.summary() if live is not None and live.total else results.summary()
        settled = results.counts[Result.RECOVERED] + results.counts[Result.FAILED_AGAIN] == results.total
        return f"{text}: {self._errors_of(results)}" if results.causes and settled else text

    def _errors_of(self, results: ResultCounts) -> str:
        """With which errors its items failed again, the most frequent ones."""
        heads, found = {**self.errors, **results.heads}, results.failed_with
        named = [(number, safe.line(heads.get(cause, f"cause {cause[:8]}"), _CAUSE_SHOWN)) for cause, number in found]
        if [number for number, _ in named] == [results.counts[Result.FAILED_AGAIN]]:
            return named[0][1]
        others = sum(number for number, _ in named[_CAUSES_SHOWN:])
        rest = [f"{others} × other errors"] if others else []
        return "; ".join([*(f"{number} × {head}" for number, head in named[:_CAUSES_SHOWN]), *rest])

    # -- the canary --------------------------------------------------------------------------------

    def steps(self) -> Iterator[Line]:
        """The steps of a canary while it is carried out."""
        progress = self.followed.progress
        canary = progress.canary if progress is not None else None
        if canary is None or not self.followed.running or progress is None:
            return
        if self.followed.plan is not None and sum(part.changes > 0 for part in self.followed.plan.parts) > 1:
            yield [Cell(f" {safe.line(progress.stage.partition(' · ')[0])}", "muted")]
        for number, size in enumerate(canary.steps, 1):
            name = "canary" if number == 1 else f"step {number}"
            title = Cell(f" {safe.fit(name, 7)}", "accent" if number == canary.step else "muted")
            seen = canary if number == canary.step else self.followed.canary_steps.get(number)
            if number <= canary.step and seen is not None:
                yield [title, *_dots(seen), Cell(f"  {_canary_words(seen)}", "plain" if seen is canary else "muted")]
            elif number < canary.step:  # done by another process, which was resumed here
                yield [title, Cell("●" * _BAR, "good"), Cell(f"  {thousands(size)} written", "muted")]
            else:
                yield [title, Cell("─" * _BAR, "muted"), Cell(f"  {thousands(size)} to go", "muted")]

    # -- the figures -------------------------------------------------------------------------------

    def figures(self) -> list[Figure]:
        """The outcomes of the items, then their results. Zeros are left out, except the usual ones."""
        found, counts = [], self.counts
        total = max(self.total, 1)
        for kind in OutcomeKind:
            look = outcome_look(kind, self.action, self.actions)
            count = counts.get(kind, 0)
            if count or kind is OutcomeKind.APPLIED:
                share = count / total if kind is OutcomeKind.APPLIED else 0.0
                meaning = f"of {thousands(self.total)}" if kind is OutcomeKind.APPLIED else look.meaning
                found.append(Figure(kind.value, look.sign, look.word, count, look.tone, share, meaning))
        if skipped := self.selected - self.total:
            found.append(Figure(SKIPPED, "–", SKIPPED, skipped, "muted", 0.0, "left out of the plan"))
        return found + self._result_figures()

    def _result_figures(self) -> list[Figure]:
        results = self.results
        if results is None:
            return []
        live = self.followed.results
        unread = live.unread if live is not None else 0
        found, total = [], max(results.total + unread, 1)
        for result in Result:
            count = results.counts[result]
            if not count and result not in (Result.RECOVERED, Result.FAILED_AGAIN):
                continue
            look = result_look(result)
            found.append(Figure(result.value, look.sign, look.word, count, look.tone, count / total, look.meaning))
            if result is Result.FAILED_AGAIN and count:
                other = count - results.same_cause
                for id, number in ((SAME_CAUSE, results.same_cause), (OTHER_CAUSE, other)):
                    if number:
                        found.append(Figure(id, " ", f"  with {_WITH[id]}", number, "plain", number / total))
        if unread:
            found.append(Figure(NOT_READ, "…", "not read yet", unread, "muted", unread / total, "read a few at a time"))
        return found

    def in_numbers(self) -> Iterator[Line]:
        """The figures in one line."""
        found = [f"{thousands(figure.items)} {figure.label}" for figure in self.figures() if figure.sign.strip()]
        yield _pair("items", " · ".join(found))

    # -- the facts ---------------------------------------------------------------------------------

    def facts(self) -> Iterator[Line]:
        """Who did it, why, and what was confirmed."""
        override, followed = self.override, self.followed
        if override is None:
            if followed.plan is not None:
                yield _pair("selection", followed.plan.selection)
                yield _pair("pace", str(followed.plan.pace))
            return
        yield _pair("reason", override.reason)
        if override.ticket:
            yield _pair("ticket", override.ticket)
        yield _pair("who", override.who)
        yield _pair("started", moment(override.started_at))
        if followed.results is not None and followed.results.last_due_at is not None and not followed.running:
            due = followed.results.last_due_at
            if followed.results.open and due > override.started_at + timedelta(minutes=1):
                yield _pair("last due", f"{instant(due.replace(microsecond=0))}: the last item runs then")
        if followed.results is not None:
            yield from (_pair("not read", f"{name}: {why}", "warning") for name, why in followed.results.faults.items())
        yield []
        yield from (_pair(words, value) for words, value in self._confirmed())
        for part in override.confirmed.get("parts", ()):
            changes, selected = part.get("changes", 0), part.get("selected", 0)
            yield _pair(str(part.get("backend", "")), f"{changes} of {selected} at {part.get('place', '')}")
        yield _pair("override", override.override_id)

    def _confirmed(self) -> Iterator[tuple[str, str]]:
        """What was confirmed, in words. Attempts and a pace mean something for a requeue only."""
        assert self.override is not None
        fields = dict(_fields(self.override.confirmed))
        if flags := self.override.confirmed.get("flags"):
            fields["flags"] = ", ".join(switch_name(str(flag), self.switches) for flag in flags)
        unused = () if self.action == Action.REQUEUE else ("attempts", "pace")
        return ((words, fields[name]) for name, words in _NAMES.items() if name in fields and name not in unused)


def _dots(canary: CanaryProgress) -> Line:
    if canary.total > _DOTS:
        return _bar_of(canary)
    known = canary.recovered + canary.failed_again + canary.changed_by_others
    rest = max(canary.total - known - canary.running - canary.waiting, 0)
    return [
        Cell("●" * canary.recovered, "good"),
        Cell("✗" * canary.failed_again, "error"),
        Cell("≠" * canary.changed_by_others, "warning"),
        Cell("?" * rest, "warning"),
        Cell("▸" * canary.running, "calm"),
        Cell("○" * canary.waiting, "muted"),
    ]


def _bar_of(canary: CanaryProgress) -> Line:
    """A bar with a part for what recovered and one for what failed again; each that is not empty is visible."""
    failed = _part(canary.failed_again, canary.total)
    recovered = min(_part(canary.recovered, canary.total), _BAR - failed)
    return [
        Cell("█" * recovered, "good"),
        Cell("█" * failed, "error"),
        Cell("░" * (_BAR - recovered - failed), "muted"),
    ]


def _part(items: int, total: int) -> int:
    return max(round(items / max(total, 1) * _BAR), int(items > 0))


def _canary_words(canary: CanaryProgress) -> str:
    words = f"{canary.recovered} recovered · {canary.failed_again} failed again"
    if canary.changed_by_others:
        words += f" · {canary.changed_by_others} changed by somebody else"
    if canary.running:
        words += f" · {canary.running} running"
    return f"{words} · {canary.waiting} not run yet" if canary.waiting else words


def _pair(name: str, value: str, tone: str = "plain") -> Line:
    return [Cell(f" {safe.fit(safe.line(name), _NAME_WIDTH)} ", "muted"), Cell(safe.line(value, 1_000), tone)]


def _fields(body: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The fields of a record that have a value, in words; a nested field is named `outer.inner`."""
    for name, value in body.items():
        if isinstance(value, Mapping):
            yield from _fields(value, f"{prefix}{name}.")
        elif value not in (None, "", [], ()):
            yield f"{prefix}{name}", _in_words(value)


def _in_words(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_in_words, value))
    return str(value)
