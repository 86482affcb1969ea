"""Puts a session together from the settings: backends, operations, trail, history, rules and hooks.

Nothing is read or written before it is used. Imports are late, so that a command loads only what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from console import __version__

if TYPE_CHECKING:
    from console.core.agent import AgentSession
    from console.core.alert_rules import Rule
    from console.core.alerts import Hook
    from console.core.budget import ReadingBudget
    from console.core.event_hooks import EventHooks
    from console.core.history import Recorder, Snapshot
    from console.core.ports import Stop
    from console.core.session import Session
    from console.settings import Settings


def open_session(settings: Settings, *, stop: Stop, needs_trail: bool) -> Session:
    """The backends of a config, with its trail and history unless the command needs none."""
    from console.core.confirm import Limits
    from console.core.session import Session
    from console.identity import origin, who
    from console.process import SystemClock
    from console.registry import open_all

    console = settings.console
    limits = Limits(
        console.confirm_from, console.max_items, console.canary_failure_limit, console.canary_deadline,
        console.chunk_target, console.watch_for,
    )
    session = Session(
        open_all(settings), SystemClock(), stop, limits, console.read_only, console.operator,
        str(settings.path or ""), console.refresh, console.views, console.runbooks, console.keymap, console.theme,
        who=who(console.operator), origin=origin(__version__), anchor=_anchor(settings), load=console.load,
        read_only_backends=settings.read_only_backends, views_file=console.views_file(), rules=settings.access,
        notify=console.notify,
    )
    return _with_history(_with_trail(session, settings), settings) if needs_trail else session


def open_agent_session(settings: Settings) -> AgentSession:
    """Backends that cannot be written, and a trail that takes proposals. No executor is made, or even loaded."""
    from console.core.agent import AgentSession
    from console.core.confirm import Limits
    from console.history.store import open_history
    from console.identity import origin, who
    from console.process import SystemClock
    from console.registry import open_all
    from console.trail.submit_only import SubmitOnlyTrail

    console, clock = settings.console, SystemClock()
    return AgentSession(
        open_all(settings.as_read_only()),
        SubmitOnlyTrail(console.trail_url(), anchor=_anchor(settings), clock=clock),
        clock,
        Limits(console.confirm_from, console.max_items),
        who(console.operator),
        origin(__version__),
        settings.access,
        open_history(settings.history.store_url(), read_only=True),
        console.read_only,
        settings.read_only_backends,
    )


def _anchor(settings: Settings) -> str | None:
    return None if settings.console.anchor is None else str(settings.console.anchor)


def _with_trail(session: Session, settings: Settings) -> Session:
    """The same session with its trail. Nothing is read or written before the trail is used."""
    from dataclasses import replace

    from console.core.approvals import Approvals
    from console.core.budget import ReadingBudget
    from console.core.cause_life import CauseStates
    from console.core.operations import Operations
    from console.trail.faultpoint import reach
    from console.trail.leases import owner_token
    from console.trail.store import open_trail

    url = settings.console.trail_url()
    trail = open_trail(url, read_only=session.read_only, anchor=session.anchor, clock=session.clock)
    refresh = session.refresh.total_seconds()
    operations = Operations(
        {backend.name: backend for backend in session.backends}, trail, session.clock,
        budgets={backend.name: ReadingBudget(session.load, refresh) for backend in session.backends},
        limits=session.limits, read_only=session.read_only, read_only_backends=session.read_only_backends,
        who=session.who, origin=session.origin,
        owner=owner_token(), rules=session.rules, reach=reach,
    )
    approvals = Approvals(operations, session.clock, session.who, session.origin)
    causes = CauseStates(trail, session.clock, session.who, session.origin, read_only=session.read_only)
    return replace(session, trail=trail, operations=operations, approvals=approvals, causes=causes)


def _with_history(session: Session, settings: Settings) -> Session:
    """The same session with its history. Nothing is read or written before the history is used."""
    from dataclasses import replace

    from console.history.store import open_history

    history = open_history(settings.history.store_url(), read_only=session.read_only)

    def recorder(budgets: Mapping[str, ReadingBudget] | None) -> Recorder:
        from console.history.recorder import HistoryRecorder, Sampler
        from console.history.samples import SampleWriter
        from console.trail.leases import is_dead, owner_token

        writer = SampleWriter(
            history.storage, owner_token(), keep_errors=settings.history.errors, is_dead=is_dead
        )
        sampler = Sampler(session.entries, budgets, session.load, session.stop)
        return HistoryRecorder(history.storage, writer, sampler, session.clock)

    def sample() -> Snapshot:
        from console.history.recorder import Sampler, snapshot_of

        now = session.clock.now()
        return snapshot_of(Sampler(session.entries, None, session.load, session.stop, hold_limit=None).read(now), now)

    def repeated_sample() -> Callable[[], Snapshot]:
        from console.history.recorder import RepeatedSample, Sampler

        samples = RepeatedSample(Sampler(session.entries, None, session.load, session.stop))
        return lambda: samples.read(session.clock.now())

    return replace(
        session, history=history, recorder=None if session.read_only else recorder, sample=sample,
        repeated_sample=repeated_sample,
        record_history=settings.history.record,
        alerting=lambda: _alerting(settings), event_hooks=_event_hooks(session, settings),
    )


def _event_hooks(session: Session, settings: Settings) -> EventHooks | None:
    """What calls hooks when an override or its watch ends, if the config names any."""
    wanted = settings.alerts.overrides
    if not wanted or session.operations is None:
        return None
    from console.cli.render import note
    from console.core.event_hooks import EventHooks

    hooks = [hook for hook in _alerting(settings)[1] if hook.name in wanted]
    found = EventHooks(hooks, session.clock, lambda why: note(f"retriage: {why}"))
    session.operations.listen(found)
    return found


def _alerting(settings: Settings) -> tuple[Sequence[Rule], Sequence[Hook]]:
    """The rules of the config, and its hooks ready to be called."""
    from console.history.hooks import CommandHook, WebHook

    hooks: list[Hook] = []
    for name, hook in settings.alerts.hooks.items():
        if hook.command is not None:
            hooks.append(CommandHook(name, hook.command, hook.timeout))
        elif hook.webhook is not None:
            headers = {key: value.get_secret_value() for key, value in hook.headers.items()}
            hooks.append(WebHook(name, hook.webhook.get_secret_value(), hook.timeout, hook.retries, headers))
    return [rule.rule(settings.alerts.quiet) for rule in settings.alerts.rules], hooks


def empty_session(read_only: bool) -> Session:
    """A session without a config: no backends, and the path where a config would be found."""
    from console.core.confirm import Limits
    from console.core.ports import Never
    from console.core.session import Session
    from console.process import SystemClock
    from console.xdg import config_folder

    config = str(config_folder() / "config.yaml")
    return Session((), SystemClock(), Never(), Limits(), read_only, config=config)
