"""The hand-over report: what failed, what was done about it, what is to come and what is open."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from typing import assert_never

from console.core.backend import Count, Histogram, total_of
from console.core.cause_count import Cause
from console.core.cause_life import UNKNOWN_LIFE, CauseLife, CauseState
from console.core.faults import Fault
from console.core.history import MINUTE, Mark, Snapshot, Trend, mark_before
from console.core.item import NEEDS_ATTENTION, Condition
from console.core.override import Override, OverrideState, outcome_summary
from console.core.proposals import Proposal, ProposalState
from console.core.session import Session
from console.core.text import duration, first_line, plural
from console.report.document import (
    BarChart,
    Block,
    Cell,
    Document,
    Event,
    FactList,
    Heading,
    Notes,
    Paragraph,
    Table,
    TrendChart,
    TwoLines,
)

STEPS = 72
_MOST_CAUSES = 25
_ERROR = 160
_SHOWN = (Condition.TERMINAL, Condition.STUCK, Condition.FAILED, Condition.RETRYING)
_TITLE = 90


@dataclass(slots=True)
class _Facts:
    """Everything the report is made of. What could not be read is missing, and named in `problems`."""

    now: Snapshot
    since: datetime
    causes: list[tuple[Cause, CauseLife]] = field(default_factory=list)
    cause_trends: Mapping[str, Trend] = field(default_factory=dict)
    system_trends: Mapping[str, Trend] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
    overrides: Sequence[Override] = ()
    """Those that began in this time."""
    open_overrides: Sequence[Override] = ()
    """Those that have not ended, whenever they began, and those that have stopped in this time."""
    proposals: Sequence[Proposal] = ()
    """Those that wait for a decision."""
    unresolved: int = 0
    problems: list[str] = field(default_factory=list)


def hand_over(session: Session, now: Snapshot, since: datetime) -> Document:
    """The report for the next shift, from `since` until now."""
    facts = _collect(session, now, since)
    title = f"Hand-over, {duration(_whole_minutes(now.at - since))} to {now.at:%Y-%m-%d %H:%M}Z"
    return Document(title, _blocks(session, facts, title))


def _whole_minutes(span: timedelta) -> timedelta:
    return MINUTE * round(span / MINUTE)


def _collect(session: Session, now: Snapshot, since: datetime) -> _Facts:
    facts, first_seen = _Facts(now, since), dict[str, datetime]()
    try:
        if session.history is not None:
            end = now.at + MINUTE
            first_seen = dict(session.history.first_seen())
            facts.cause_trends = session.history.cause_trends(since, end, STEPS)
            facts.system_trends = session.history.system_trends(since, end, STEPS)
            facts.marks = session.history.marks(since, end)
    except Fault as fault:
        facts.problems.append(str(fault))
    states = session.causes
    try:
        if states is not None:
            states.read()
        if session.trail is not None:
            overrides = session.trail.overrides()
            facts.overrides = [one for one in overrides if one.started_at >= since]
            facts.open_overrides = [one for one in overrides if _is_open(one, since)]
            facts.proposals = [one for one in session.trail.proposals() if one.state is ProposalState.OPEN]
            facts.unresolved = len(session.trail.unresolved())
    except Fault as fault:
        facts.problems.append(str(fault))
        states = None
    facts.problems = list(dict.fromkeys([*facts.problems, *_trail_problems(session)]))
    for cause in now.causes:
        seen = first_seen.get(cause.signature or "")
        facts.causes.append((cause, UNKNOWN_LIFE if states is None else states.life(cause, seen)))
    facts.causes.sort(key=lambda one: (one[0].overflow, one[1].state.is_listed_last, -one[0].count))
    return facts


def _trail_problems(session: Session) -> Iterator[str]:
    """Why the trail cannot be relied on."""
    if session.trail is None:
        return
    try:
        found = session.trail.verified(session.anchor_file)
    except Fault as fault:
        yield str(fault)
        return
    if not found.ok:
        yield (
            f"The trail is broken: record {found.first_bad}: {found.what}. What is said here about causes and overrides"
            " may be false."
        )


def _is_open(override: Override, since: datetime) -> bool:
    match override.state:
        case OverrideState.FINISHED:
            return False
        case OverrideState.STOPPED:
            return override.started_at >= since
        case OverrideState.QUEUED | OverrideState.RUNNING | OverrideState.PAUSED:
            return True
        case _:
            assert_never(override.state)


def _blocks(session: Session, facts: _Facts, title: str) -> Iterator[Block]:
    yield Heading(1, title)
    host = f" on {session.origin.host}" if session.origin.host else ""
    yield Paragraph(f"Made by {session.who}{host}. All times are UTC.")
    yield from (Paragraph(problem, warning=True) for problem in facts.problems)
    yield from _summary(facts)
    yield from _open(facts)
    yield from _causes(facts)
    yield from _overrides(facts, session)
    yield from _upcoming(facts)
    yield from _systems(session, facts)
    yield from _marks(facts)


def _summary(facts: _Facts) -> Iterator[Block]:
    failures = total_of(chain.from_iterable(_attention(facts, name) for name in facts.now.systems))
    items = f"{failures} {plural(failures.value, 'item')}"
    systems = len(facts.now.systems)
    states = Counter(life.state for cause, life in facts.causes if cause.signature)
    total = _total(facts.system_trends)
    change = "" if total is None or total.change is None else f" ({total.change:+d} in this time)"
    yield FactList([
        ("Need attention", f"{items} in {systems} {plural(systems, 'system')}{change}"),
        ("Causes", ", ".join(f"{states[state]} {state.value}" for state in CauseState if states[state]) or "none"),
        ("Overrides", str(len(facts.overrides)) if facts.overrides else "none"),
    ])
    if total is not None:
        events = [Event(mark.at, mark.text) for mark in facts.marks]
        events += [Event(one.started_at, f"override {one.override_id}") for one in facts.overrides]
        yield TrendChart("Items that need attention, all systems", total, sorted(events))


def _attention(facts: _Facts, name: str) -> Iterator[Count]:
    counts = facts.now.systems[name].counts
    return (count for condition, count in counts.items() if condition in NEEDS_ATTENTION)


def _total(trends: Mapping[str, Trend]) -> Trend | None:
    """The sum over all systems. A step in which one of them was not read is a gap."""
    if not trends:
        return None
    first = next(iter(trends.values()))
    values = []
    for column in zip(*(trend.values for trend in trends.values()), strict=True):
        known = [value for value in column if value is not None]
        values.append(sum(known) if len(known) == len(column) else None)
    return Trend(first.start, first.width, tuple(values)) if any(value is not None for value in values) else None


def _open(facts: _Facts) -> Iterator[Block]:
    yield Heading(2, "Open")
    why = facts.now.faults
    lines = [f"{name} does not answer: {why.get(name, 'nothing was recorded')}" for name in facts.now.missing]
    lines += [
        f"Override {one.override_id} of {one.who} is {one.state_label}. {one.note}".strip()
        for one in facts.open_overrides
    ]
    lines += [
        f"Proposal {one.plan_id} of {one.proposer} waits for approval until {one.expires_at:%m-%d %H:%M}:"
        f" {one.action.replace('_', ' ')} {one.items} {plural(one.items, 'item')}. {one.reason}"
        for one in facts.proposals
    ]
    if facts.unresolved:
        lines.append(f"{facts.unresolved} writes have no recorded outcome. `retriage trail unresolved` lists them.")
    lines += [
        f"{_error(cause)}: {life.detail}, {cause.count} {plural(cause.count, 'failure')}."
        for cause, life in facts.causes if life.state is CauseState.REGRESSED
    ]
    yield from (Paragraph(line, warning=True) for line in lines)
    if not lines:
        yield Paragraph("Nothing.")


def _causes(facts: _Facts) -> Iterator[Block]:
    yield Heading(2, "Causes")
    named = [one for one in facts.causes if not one[0].overflow]
    quiet = [one for one in named if one[1].state.is_listed_last]
    loud = [one for one in named if not one[1].state.is_listed_last]
    yield from _cause_table(facts, loud) if loud else [Paragraph("None, except those below." if quiet else "None.")]
    if quiet:
        yield Heading(3, f"Acknowledged, snoozed or resolved: {_number(quiet)}")
        yield from _cause_table(facts, quiet)
    for cause, life in named:
        if life.notes or life.state in (CauseState.ACKNOWLEDGED, CauseState.SNOOZED):
            yield Heading(3, first_line(cause.sample)[:_TITLE] or str(cause.signature))
            owner = f" Owner: {life.owner}." if life.owner else ""
            yield Paragraph(f"{life.detail[:1].upper()}{life.detail[1:]}.{owner} Cause {cause.signature}.")
            yield Notes([(f"{note.at:%m-%d %H:%M}", note.by, note.text) for note in life.notes])


def _cause_table(facts: _Facts, causes: Sequence[tuple[Cause, CauseLife]]) -> Iterator[Block]:
    yield Table(
        ("cause", "count", "change", "trend", "systems", "state"),
        [_cause_row(facts, cause, life) for cause, life in causes[:_MOST_CAUSES]], frozenset({1, 2}), frozenset({0}),
    )
    if (rest := causes[_MOST_CAUSES:]):
        yield Paragraph(f"Not listed: {_number(rest)}.")


def _number(causes: Sequence[tuple[Cause, CauseLife]]) -> str:
    failures = sum(cause.count for cause, _ in causes)
    return f"{len(causes)} {plural(len(causes), 'cause')} with {failures} {plural(failures, 'failure')}"


def _cause_row(facts: _Facts, cause: Cause, life: CauseLife) -> tuple[Cell, ...]:
    trend = facts.cause_trends.get(cause.signature or "")
    change = None if trend is None else trend.change
    mark = mark_before(life.first_seen, facts.marks)
    about = [f"owner {life.owner}"] if life.owner else []
    about += [f"began after {mark.text}"] if mark else []
    strong = life.state in (CauseState.NEW, CauseState.REGRESSED)
    return (
        TwoLines(_error(cause), cause.signature or ""), f"{cause.sign}{cause.count}",
        "" if change is None else f"{change:+d}", trend,
        ", ".join(name for name, _ in cause.backends),
        TwoLines(life.state.value, ", ".join(about), strong) if cause.signature else "",
    )


def _error(cause: Cause) -> str:
    return first_line(cause.sample)[:_ERROR] or ("(no error text)" if cause.signature is None else "")


def _overrides(facts: _Facts, session: Session) -> Iterator[Block]:
    yield Heading(2, "Overrides")
    if not facts.overrides:
        yield Paragraph("None in this time.")
        return
    yield Table(
        ("when", "override", "who", "why", "written", "result", "state"),
        [
            (
                f"{one.started_at:%m-%d %H:%M}", one.override_id, one.who,
                f"{one.reason} ({one.ticket})" if one.ticket else one.reason,
                outcome_summary(one.counts, one.action, session.actions),
                "not known yet" if one.results is None else one.results.summary(), one.state_label,
            )
            for one in facts.overrides
        ],
    )


def _upcoming(facts: _Facts) -> Iterator[Block]:
    yield Heading(2, "Upcoming retries")
    due = {name: one.upcoming for name, one in facts.now.systems.items() if one.upcoming is not None}
    together = _together(list(due.values()))
    if together is None or not (sum(together.counts) + together.before):
        yield Paragraph("None in the next hour.")
        return
    peak = max(range(len(together.counts)), key=lambda number: together.counts[number])
    at = together.start + together.width * peak
    most = ", ".join(
        f"{name} {one.before + sum(one.counts)}"
        for name, one in sorted(due.items(), key=lambda pair: -sum(pair[1].counts)) if one.before + sum(one.counts)
    )
    yield Paragraph(
        f"{sum(together.counts)} in the next hour, {together.before} overdue. The busiest {duration(together.width)}"
        f" begin at {at:%H:%M}, with {together.counts[peak]}. {most}."
    )
    yield BarChart("Retries per 5 minutes", together)


def _together(histograms: Sequence[Histogram]) -> Histogram | None:
    if not histograms:
        return None
    counts = tuple(map(sum, zip(*(one.counts for one in histograms), strict=True)))
    before, after = sum(one.before for one in histograms), sum(one.after for one in histograms)
    return histograms[0]._replace(counts=counts, before=before, after=after)


def _systems(session: Session, facts: _Facts) -> Iterator[Block]:
    yield Heading(2, "Systems")
    rows: list[tuple[Cell, ...]] = []
    for name in session.names:
        system = facts.now.systems.get(name)
        if system is None:
            rows.append((name, "", "", "", "", facts.system_trends.get(name), "does not answer"))
            continue
        counts = [system.counts.get(condition) for condition in _SHOWN]
        figures = (str(count) if count is not None and count.value else "·" for count in counts)
        notes = [f"does not answer; as of {system.as_of:%H:%M}"] if name in facts.now.missing else []
        notes += ["its causes are estimates"] if name in facts.now.sampled else []
        rows.append((name, *figures, facts.system_trends.get(name), ", ".join(notes)))
    yield Table(("system", *(condition.value for condition in _SHOWN), "trend", ""), rows, frozenset({1, 2, 3, 4}))


def _marks(facts: _Facts) -> Iterator[Block]:
    if facts.marks:
        yield Heading(2, "Deploys and other marks")
        yield Notes([(f"{mark.at:%m-%d %H:%M}", mark.by, mark.text) for mark in facts.marks])
