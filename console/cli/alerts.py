"""`alerts`: evaluate the rules of the config, and call their hooks."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from console.cli.columns import Column
from console.cli.context import CommandContext
from console.cli.history import history_of, wait_for_minute
from console.cli.render import RowFormat, chosen_format, note, note_fault, print_rows
from console.core.alert_rules import Rule, RuleKind
from console.core.alerts import Alert, AlertState, Hook, Situation, evaluate, payload, sent
from console.core.cause_life import UNKNOWN_LIFE, CauseLife
from console.core.faults import ConfigFault, Fault, TrailBroken, TrailUnavailable
from console.core.history import Recorder, Snapshot
from console.core.session import Session
from console.core.text import ago, instant, plural
from console.report.present import present

ALERT_IS_ON = 6
FIELDS = ("rule", "kind", "subject", "text", "since", "hooks_called", "facts")
_OVERRIDES = 50
_HOUR = timedelta(hours=1)
_VERIFY_EVERY = 600.0
_FRESH = timedelta(minutes=3)
"""A sample of another process is used if it is not older than this."""


def alerts(args: Namespace, context: CommandContext) -> int:
    """Evaluate once, or every minute until a signal."""
    session = context.session()
    rules, hooks = session.alerting() if session.alerting is not None else ((), ())
    if not rules:
        raise ConfigFault("No alert rules are configured", where=session.config, fix="Add some below alerts.rules.")
    repeated = None if args.once or session.repeated_sample is None else session.repeated_sample()
    evaluation = _Evaluation(session, rules, _Sender(hooks), repeated)
    if args.once:
        found = evaluation.run()
        evaluation.finish()
        print_rows(found, RowFormat(FIELDS, _record, _columns(session.clock.now())), args.format)
        if not found and chosen_format(args.format) == "table":
            note("No alert is on.")
        return ALERT_IS_ON if found else 0
    note(f"Evaluating {len(rules)} {plural(len(rules), 'rule')} every minute. SIGTERM or Ctrl-C ends it.")
    _watch(evaluation, session)
    return 0


def _watch(evaluation: _Evaluation, session: Session) -> None:
    """Report what turns on and off."""
    on: dict[str, Alert] = {}
    try:
        while not session.stop.requested:
            now = instant(session.clock.now().replace(microsecond=0))
            found = {alert.match.key: alert for alert in evaluation.run()}
            for key, alert in found.items():
                if key not in on:
                    note(f"{now} on: {alert.match.rule.id}: {alert.match.text}")
            for key, alert in on.items():
                if key not in found:
                    note(f"{now} off: {alert.match.rule.id}: {alert.match.text}")
            on = found
            wait_for_minute(session.clock, session.stop)
    finally:
        evaluation.finish()


@dataclass(slots=True)
class _Evaluation:
    """Looks at everything the rules need, and remembers the states of the alerts."""

    session: Session
    rules: Sequence[Rule]
    sender: _Sender
    sample: Callable[[], Snapshot] | None = None
    """Reads the systems if nobody records them; without one they are read once."""
    recorder: Recorder | None = None
    states: dict[str, AlertState] = field(default_factory=dict)
    verified_at: float = float("-inf")
    trail_fault: str = ""

    def run(self) -> list[Alert]:
        now = self.session.clock.now()
        situation = self._situation(now)
        self._load()
        found, states = evaluate(self.rules, situation, self.states)
        delivered = self.sender.delivered()
        self.states = sent(states, (alert for alert in found if alert.match.key in delivered), now)
        self.sender.send([alert for alert in found if alert.due and alert.match.key not in delivered], now)
        self._keep()
        return found

    def finish(self) -> None:
        """Wait for the hooks, each of which has a time-out, and note which alerts were delivered."""
        self.sender.wait()
        now, delivered = self.session.clock.now(), self.sender.delivered()
        self.states = {
            key: AlertState(state.since, now) if key in delivered else state for key, state in self.states.items()
        }
        self._keep()
        if self.recorder is not None:
            self.recorder.release()

    def _load(self) -> None:
        """What an earlier process remembered. A history that cannot be read forgets it."""
        try:
            stored = history_of(self.session).alert_states()
        except Fault as fault:
            note_fault(fault)
            return
        found = {key: AlertState.read(state) for key, state in stored.items()}
        self.states |= {key: state for key, state in found.items() if state is not None and key not in self.states}

    def _keep(self) -> None:
        if self.session.read_only:
            return
        try:
            history_of(self.session).keep_alert_states({key: state.stored() for key, state in self.states.items()})
        except Fault as fault:
            note_fault(fault)

    # -- looking -----------------------------------------------------------------------------------

    def _situation(self, now: datetime) -> Situation:
        then = self._sample(now)
        lives = list(self._lives(then))
        before = self._an_hour_ago(now) if self._wants(RuleKind.CAUSE_GROWS) else {}
        upcoming = {name: one.upcoming for name, one in then.systems.items() if one.upcoming is not None}
        unreachable = {name: then.faults.get(name, "nothing was recorded") for name in then.missing}
        overrides = self.session.trail.overrides(_OVERRIDES) if self._wants(RuleKind.OVERRIDE_STOPPED) and (
            self.session.trail is not None) else ()
        return Situation(now, lives, before, upcoming, unreachable, overrides, self._trail_fault())

    def _wants(self, kind: RuleKind) -> bool:
        return any(rule.kind is kind for rule in self.rules)

    def _sample(self, now: datetime) -> Snapshot:
        """What the systems show: recorded by this process if nobody else records, else as the other recorded it."""
        if self.session.recorder is not None:
            try:
                self.recorder = self.recorder or self.session.recorder(None)
                self.recorder.record()
                history = history_of(self.session)
                known = history.recorded()
                if known is not None and now - known[1] < _FRESH:
                    then = history.snapshot(self.session.clock.now())
                    return replace(then, missing=tuple(name for name in then.missing if name in self.session.names))
            except Fault as fault:
                note_fault(fault)
        return present(self.session, self.sample)

    def _lives(self, then: Snapshot) -> Iterator[tuple[Any, CauseLife]]:
        states, first_seen = self.session.causes, {}
        try:
            if states is not None:
                states.read()
            first_seen = dict(history_of(self.session).first_seen())
        except Fault as fault:
            note_fault(fault)
        for cause in then.causes:
            life = UNKNOWN_LIFE if states is None else states.life(cause, first_seen.get(cause.signature or ""))
            yield cause, life

    def _an_hour_ago(self, now: datetime) -> Mapping[str, int]:
        try:
            then = history_of(self.session).snapshot(now - _HOUR)
        except Fault as fault:
            note_fault(fault)
            return {}
        return {cause.signature: cause.count for cause in then.causes if cause.signature}

    def _trail_fault(self) -> str:
        """Verify the trail, but not every minute: that reads all of it."""
        trail = self.session.trail
        if trail is None or not self._wants(RuleKind.TRAIL_BROKEN) or monotonic() - self.verified_at < _VERIFY_EVERY:
            return self.trail_fault
        self.verified_at = monotonic()
        try:
            found = trail.verified(self.session.anchor_file)
            self.trail_fault = "" if found.ok else f"record {found.first_bad}: {found.what}"
        except (TrailBroken, TrailUnavailable) as fault:
            self.trail_fault = fault.message
        return self.trail_fault


class _Sender:
    """Calls hooks in threads, so that one that hangs delays neither the others nor the next evaluation.

    A hook that is still busy gets no second call: what is due then is sent with a later one.
    """

    def __init__(self, hooks: Sequence[Hook]) -> None:
        self._hooks = hooks
        self._pool = ThreadPoolExecutor(max(len(hooks), 1), "hook")
        self._calls: dict[str, tuple[Future[str], frozenset[str]]] = {}

    def send(self, due: Sequence[Alert], now: datetime) -> None:
        for hook in self._hooks:
            wanted = [
                alert for alert in due if alert.match.rule.hooks is None or hook.name in alert.match.rule.hooks
            ]
            if wanted and hook.name not in self._calls:
                text = json.dumps(payload(wanted, now))
                keys = frozenset(alert.match.key for alert in wanted)
                self._calls[hook.name] = self._pool.submit(hook.call, text), keys

    def delivered(self) -> frozenset[str]:
        """The alerts that a hook has taken since the last call of this method. A hook that failed is reported."""
        taken: set[str] = set()
        for hook in self._hooks:
            call = self._calls.get(hook.name)
            if call is None or not call[0].done():
                continue
            del self._calls[hook.name]
            if why := call[0].result():
                note(f"retriage: hook {hook.name} ({hook.place}): {why}")
            else:
                taken |= call[1]
        return frozenset(taken)

    def wait(self) -> None:
        for future, _ in self._calls.values():
            future.result()


def _record(alert: Alert) -> dict[str, Any]:
    match = alert.match
    return {
        "rule": match.rule.id, "kind": match.rule.kind.value, "subject": match.subject, "text": match.text,
        "since": alert.since, "hooks_called": alert.due, "facts": dict(match.facts),
    }


def _columns(now: datetime) -> tuple[Column[Alert], ...]:
    return (
        Column("rule", lambda alert: alert.match.rule.id),
        Column("since", lambda alert: ago(now - alert.since)),
        Column("subject", lambda alert: alert.match.subject, dropped=1),
        Column("", lambda alert: alert.match.text, least=30),
    )
