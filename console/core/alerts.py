"""Alerts: rules over what the systems, the causes, the overrides and the trail show.

A rule that holds for as long as it asks for is on. Its hooks are called when it turns on, and again after its quiet
time while it stays on. Everything here is a pure function of a situation and of the states before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol, assert_never

from console.core.alert_rules import Rule, RuleKind
from console.core.backend import Histogram
from console.core.cause_count import Cause
from console.core.cause_life import CauseLife, CauseState
from console.core.override import Override, OverrideState
from console.core.text import duration, instant, plural

LEAST_TO_GROW = 10
"""A cause with fewer failures does not count as growing."""
STOPPED_FOR = timedelta(hours=24)
"""How long after its start a stopped override is reported."""
MOST_ALERTS = 100
"""The largest number of alerts that one call of a hook names. It says how many more there are."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the rules look at."""

    now: datetime
    causes: Sequence[tuple[Cause, CauseLife]] = ()
    an_hour_ago: Mapping[str, int] = field(default_factory=dict)
    """Failures per cause an hour ago, for causes of which that is known."""
    upcoming: Mapping[str, Histogram] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Systems that do not answer, and why."""
    overrides: Sequence[Override] = ()
    trail_fault: str = ""
    """What is wrong with the trail."""


class Match(NamedTuple):
    """Something that a rule found."""

    rule: Rule
    subject: str
    """The cause, system or override."""
    text: str
    """What there is to say, without error text."""
    facts: Mapping[str, Any]

    @property
    def key(self) -> str:
        return f"{self.rule.id} | {self.subject}"


@dataclass(frozen=True, slots=True)
class AlertState:
    """What is remembered about a match from one evaluation to the next."""

    since: datetime
    sent: datetime | None = None

    def stored(self) -> dict[str, str | None]:
        return {"since": instant(self.since), "sent": None if self.sent is None else instant(self.sent)}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> AlertState | None:
        """Read what `stored` gave; None if it is something else."""
        try:
            sent = stored["sent"]
            return cls(
                datetime.fromisoformat(stored["since"]), None if sent is None else datetime.fromisoformat(sent)
            )
        except (KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule that is on."""

    match: Match
    since: datetime
    due: bool
    """Whether its hooks are to be called now."""

    def record(self) -> dict[str, Any]:
        """As JSON, for people and hooks."""
        return {
            "rule": self.match.rule.id, "kind": self.match.rule.kind.value, "subject": self.match.subject,
            "text": self.match.text, "since": instant(self.since), **self.match.facts,
        }


class Hook(Protocol):
    """Something outside that is called when an alert is on."""

    name: str
    place: str
    """What it calls, safe to show."""

    def call(self, payload: str) -> str:
        """Deliver a JSON text. Returns why that failed, or an empty text. Never raises, never takes for ever."""


def matches(rules: Iterable[Rule], situation: Situation) -> Iterator[Match]:
    """Everything that the rules find, whether or not it has lasted long enough."""
    for rule in rules:
        match rule.kind:
            case RuleKind.NEW_CAUSE:
                yield from _new_causes(rule, situation)
            case RuleKind.CAUSE_GROWS:
                yield from _growing(rule, situation)
            case RuleKind.STORM_AHEAD:
                yield from _storms(rule, situation)
            case RuleKind.UNREACHABLE:
                for name, why in situation.unreachable.items():
                    yield Match(rule, name, f"{name} does not answer", {"backend": name, "why": why})
            case RuleKind.OVERRIDE_STOPPED:
                yield from _stopped(rule, situation)
            case RuleKind.TRAIL_BROKEN:
                if situation.trail_fault:
                    yield Match(rule, "trail", f"The trail is broken: {situation.trail_fault}", {})
            case _:
                assert_never(rule.kind)


def evaluate(
    rules: Sequence[Rule], situation: Situation, before: Mapping[str, AlertState]
) -> tuple[list[Alert], dict[str, AlertState]]:
    """The alerts that are on, and the states to remember. What no longer holds is forgotten."""
    alerts, states = [], {}
    for found in matches(rules, situation):
        known = before.get(found.key)
        if known is None or known.since > situation.now:  # the clock was set back
            known = AlertState(situation.now)
        states[found.key] = known
        if situation.now - known.since >= found.rule.lasting:
            quiet = known.sent is not None and timedelta(0) <= situation.now - known.sent < found.rule.quiet
            alerts.append(Alert(found, known.since, not quiet))
    return alerts, states


def sent(states: Mapping[str, AlertState], alerts: Iterable[Alert], now: datetime) -> dict[str, AlertState]:
    """The states after the hooks of these alerts were called."""
    sent = {alert.match.key for alert in alerts}
    return {key: replace(state, sent=now) if key in sent else state for key, state in states.items()}


def payload(alerts: Sequence[Alert], now: datetime) -> dict[str, Any]:
    """What a hook is given: one call for all alerts, so that a flood of them is one message."""
    found: dict[str, Any] = {
        "at": instant(now), "alerts": [alert.record() for alert in alerts[:MOST_ALERTS]], "count": len(alerts),
    }
    if len(alerts) > MOST_ALERTS:
        found["more"] = len(alerts) - MOST_ALERTS
    return found


def _new_causes(rule: Rule, situation: Situation) -> Iterator[Match]:
    """Causes that are new, or back although they were resolved."""
    for cause, life in situation.causes:
        if life.state in (CauseState.NEW, CauseState.REGRESSED) and cause.signature and cause.count >= rule.count:
            failures = f"{cause.count} {plural(cause.count, 'failure')}"
            if life.state is CauseState.NEW:
                text = f"New cause with {failures}"
            else:
                text = f"Regressed cause with {failures}, had been resolved by {life.by}"
            yield Match(rule, cause.signature, text, _facts(cause, life))


def _growing(rule: Rule, situation: Situation) -> Iterator[Match]:
    for cause, life in situation.causes:
        before = situation.an_hour_ago.get(cause.signature or "", 0)
        grown = before and cause.count >= max(rule.factor * before, LEAST_TO_GROW)
        if grown and cause.signature and life.state not in (CauseState.SNOOZED, CauseState.RESOLVED):
            text = f"Cause grows: {cause.count} failures, {before} an hour ago"
            yield Match(rule, cause.signature, text, {**_facts(cause, life), "an_hour_ago": before})


def _facts(cause: Cause, life: CauseLife) -> dict[str, Any]:
    return {
        "cause": cause.signature, "count": cause.count, "exact": cause.exact, "state": life.state.value,
        "by": life.by, "owner": life.owner,
        "backends": dict(cause.backends), "sample": cause.sample,
    }


def _storms(rule: Rule, situation: Situation) -> Iterator[Match]:
    due = {}
    for name, histogram in situation.upcoming.items():
        steps = -(-rule.within // histogram.width)
        due[name] = histogram.before + sum(histogram.counts[:steps])
    total = sum(due.values())
    if total >= rule.count:
        text = f"{total} {plural(total, 'retry is', 'retries are')} due within {duration(rule.within)}"
        backends = {name: count for name, count in due.items() if count}
        yield Match(rule, "all systems", text, {"count": total, "backends": backends})


def _stopped(rule: Rule, situation: Situation) -> Iterator[Match]:
    for override in situation.overrides:
        if situation.now - override.started_at > STOPPED_FOR:
            continue
        facts = {"override": override.override_id, "by": override.who, "reason": override.reason}
        if override.state is OverrideState.STOPPED and override.result is None:
            text = f"Override {override.override_id} has stopped: {override.note}"
            yield Match(rule, override.override_id, text, facts)
        elif override.state in (OverrideState.RUNNING, OverrideState.PAUSED) and not override.alive:
            text = f"The process that ran override {override.override_id} has ended"
            yield Match(rule, override.override_id, text, facts)
