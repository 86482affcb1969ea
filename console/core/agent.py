"""What a program may do for a person: read everything, and submit plans. Nothing else.

Each tool takes plain values and returns plain values. Whatever a watched system, a person or a program wrote is cut
short, neutralised and put under the key `untrusted`: it may have been written by an attacker. No executor exists here,
the backends are opened read-only, and the only method of the trail that writes is `submit`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any, Protocol

from console.core.access import AccessRules
from console.core.backend import Action, Attempts, Backend, Count, Operation
from console.core.cause_count import Cause
from console.core.cause_life import CauseLife, CauseLives
from console.core.causes import Causes
from console.core.confirm import Limits, Origin, Who
from console.core.export import record
from console.core.faults import BackendFault, Fault, Refused, UsageFault
from console.core.history import History, Snapshot
from console.core.item import Condition, ItemKey
from console.core.listing import Listing
from console.core.override import Override, outcome_counts
from console.core.pace import parse_pace
from console.core.plan import Block, Marked, Matching, Plan, Selection
from console.core.planner import Planner
from console.core.ports import Clock, Record
from console.core.proposals import Proposal, ProposalState
from console.core.query import Filter, Sort
from console.core.session import Unavailable
from console.core.text import instant, is_blank, neutralise, parse_moment

MOST_ROWS = 200
LONGEST_TEXT = 2_000
_LONGEST_NAME = 100
MOST_KEYS = 1_000
MOST_NOTES = 20
"""The newest notes of a cause."""
MOST_OPEN = 20
"""How many open proposals there may be before an agent has to wait for a person."""
_SECONDS = 20.0
"""How long one tool may read. What was read by then is returned, marked as incomplete."""


class AgentTrail(Protocol):
    """The trail as an agent gets it. `submit` is its only method that writes."""

    def overrides(self, limit: int | None = None) -> Sequence[Override]: ...

    def override(self, override_id: str) -> Override: ...

    def records_of(self, kinds: Sequence[str], *, after: int = 0, limit: int = 1_000) -> Sequence[Record]: ...

    def proposals(self, limit: int | None = None) -> Sequence[Proposal]: ...

    def proposal(self, plan_id: str) -> Proposal: ...

    def submit(
        self, plan: Plan, blocks: Sequence[Block], who: Who, origin: Origin, reason: str, ticket: str | None,
        now: datetime, *, rules: AccessRules, client: str | None,
    ) -> Proposal: ...

    def close(self) -> None: ...


class _Deadline:
    """A Stop that is requested when the time for one tool is over."""

    def __init__(self, seconds: float) -> None:
        self._end = monotonic() + seconds

    @property
    def requested(self) -> bool:
        return monotonic() > self._end


@dataclass(slots=True)
class _Blocks:
    """Keeps the rows of a plan in memory until it is submitted. To the planner it is the trail."""

    blocks: list[Block] = field(default_factory=list)

    def add_blocks(self, nonce: str, blocks: Sequence[Block]) -> None:  # noqa: ARG002  one plan only
        self.blocks.extend(blocks)

    def seal(self, plan: Plan) -> None:
        """Nothing to do: it is stored when it is submitted."""

    def discard(self, plan_id: str) -> None:  # noqa: ARG002  one plan only
        self.blocks.clear()


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a tool."""

    kind: str
    """`string`, `integer` or `strings`."""
    about: str
    required: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tool:
    """What an agent can call."""

    name: str
    about: str
    parameters: Mapping[str, Parameter]
    call: Callable[..., Any]
    writes: bool = False


@dataclass(slots=True)
class AgentSession:
    """Everything an agent's process works with."""

    entries: Sequence[Backend | Unavailable]
    trail: AgentTrail
    clock: Clock
    limits: Limits
    who: Who
    origin: Origin
    rules: AccessRules
    history: History | None = None
    read_only: bool = False
    read_only_backends: frozenset[str] = frozenset()

    @property
    def backends(self) -> list[Backend]:
        return [entry for entry in self.entries if not isinstance(entry, Unavailable)]

    def close(self) -> None:
        for backend in self.backends:
            backend.close()
        self.trail.close()
        if self.history is not None:
            self.history.close()


class AgentTools:
    """The tools of one agent. `client` is what its program calls itself."""

    def __init__(self, session: AgentSession) -> None:
        self._session = session
        self._lives = CauseLives(session.trail, session.clock)
        self.client: str | None = None

    def tools(self) -> dict[str, Tool]:
        """All tools by name. Without `submit_plan` in read-only mode."""
        example = "a filter such as 'condition:terminal error~timeout'"
        where = Parameter("string", f"{example}; default: everything that needs attention")
        limit = Parameter("integer", f"the largest number of rows, up to {MOST_ROWS}; default 50")
        found = [
            Tool("list_systems", "The watched systems, and how many items each has per condition.", {}, self.systems),
            Tool("list_failures", "Items that need attention, or those that match a filter.",
                 {"where": where, "limit": limit}, self.failures),
            Tool("list_causes", "Failures counted by cause, across systems, with the state and the owner of each.",
                 {"where": where, "limit": limit}, self.causes),
            Tool("show_item", "One item with its error and what happens next.",
                 {"key": Parameter("string", "system/id, as list_failures gives it", required=True)}, self.item),
            Tool("list_overrides", "What people have changed, newest first.", {"limit": limit}, self.overrides),
            Tool("show_override", "One override.",
                 {"override": Parameter("string", "its id", required=True)}, self.override),
            Tool("list_proposals", "Plans that wait for a person, and the decisions on earlier ones.",
                 {"limit": limit}, self.proposals),
            Tool("show_history", "Systems and causes as they were at a time in the past.",
                 {"at": Parameter("string", "a time such as 2026-11-18T03:00Z", required=True)}, self.past),
        ]
        if not self._session.read_only:
            found.append(Tool(
                "submit_plan",
                "Propose to requeue or discard items. Nothing changes until a person has approved the proposal.",
                {
                    "action": Parameter("string", "what to do", required=True, choices=("requeue", "discard")),
                    "reason": Parameter("string", "why, for the person who decides", required=True),
                    "where": Parameter("string", "a filter that narrows the selection; or give keys"),
                    "keys": Parameter("strings", f"exactly these items, up to {MOST_KEYS}; or give where"),
                    "limit": Parameter("integer", "only the first N that match"),
                    "attempts": Parameter("string", "for a requeue; default keep", choices=("keep", "reset")),
                    "pace": Parameter("string", "now, 'over 30m', 10/s or 'canary 20'; default now"),
                    "ticket": Parameter("string", "a ticket to record with it"),
                },
                self.submit, writes=True,
            ))
        return {tool.name: tool for tool in found}

    # -- reading ---------------------------------------------------------------------------------

    def systems(self) -> Any:
        now, found = self._session.clock.now(), []
        for entry in self._session.entries:
            one: dict[str, Any] = {"system": entry.name, "plugin": entry.plugin}
            if isinstance(entry, Unavailable):
                found.append({**one, "fault": untrusted(str(entry.fault))})
                continue
            try:
                counts = entry.counts(Filter.parse("condition:*"), now)
                one["items"] = _counts(counts)
            except BackendFault as fault:
                one["fault"] = untrusted(str(fault))
            found.append({**one, "read_only": entry.name in self._session.read_only_backends})
        return found

    def failures(self, where: str = "", limit: int = 50) -> Any:
        stop, now = _Deadline(_SECONDS), self._session.clock.now()
        listing = Listing(self._session.backends, Filter.parse(where), now, Sort(), _rows(limit), stop)
        items = [record(item) for item in listing]
        return {**_faults(listing.faults), "complete": not stop.requested, "untrusted": cut(items)}

    def causes(self, where: str = "", limit: int = 50) -> Any:
        stop = _Deadline(_SECONDS)
        counting = Causes(self._session.backends, Filter.parse(where), self._session.clock.now(), stop)
        found = sorted(counting.collect(), key=lambda cause: -cause.count)[: _rows(limit)]
        lives, not_read = self._lives_of(found)
        rows = [
            {"cause": cause.signature, "count": cause.count, "exact": cause.exact, "systems": dict(cause.backends),
             "first_seen": _when(cause.first), "last_seen": _when(cause.last), **_life(life),
             "untrusted": cut({"sample": cause.sample, **_by_people(life)})}
            for cause, life in zip(found, lives, strict=True)
        ]
        return {**_faults(counting.faults), **not_read, "complete": not stop.requested, "causes": rows}

    def _lives_of(self, causes: Sequence[Cause]) -> tuple[Sequence[CauseLife | None], dict[str, Any]]:
        """The states of these causes, and why they are missing if the trail or the history cannot be read."""
        try:
            self._lives.read()
            history = self._session.history
            first_seen = {} if history is None else history.first_seen()
        except Fault as fault:
            return [None] * len(causes), {"states_not_read": untrusted(str(fault))}
        return [
            None if cause.signature is None else self._lives.life(cause, first_seen.get(cause.signature))
            for cause in causes
        ], {}

    def item(self, key: str) -> Any:
        parsed, now = ItemKey.parse(key), self._session.clock.now()
        backend = next((one for one in self._session.backends if one.name == parsed.backend), None)
        if backend is None:
            raise UsageFault("No such system", fix="Call list_systems.")
        detail = backend.item(parsed, now)
        return {"untrusted": cut({**record(detail.item), "error": detail.error, "notes": list(detail.item.notes)})}

    def overrides(self, limit: int = 50) -> Any:
        return [self._override(one) for one in self._session.trail.overrides(_rows(limit))]

    def override(self, override: str) -> Any:
        return self._override(self._session.trail.override(override))

    def _override(self, one: Override) -> dict[str, Any]:
        return {
            "override": one.override_id, "state": one.state.value, "action": one.action,
            "started_at": _when(one.started_at), "counts": outcome_counts(one.counts, one.action),
            "untrusted": cut({
                "who": one.who, "proposed_by": one.proposed_by, "reason": one.reason, "ticket": one.ticket,
                "note": one.note,
            }),
        }

    def proposals(self, limit: int = 50) -> Any:
        return [_proposal(one) for one in self._session.trail.proposals(_rows(limit))]

    def past(self, at: str) -> Any:
        history = self._session.history
        if history is None or history.recorded() is None:
            raise UsageFault("Nothing is recorded yet", fix="Run `retriage history record`, or leave a console open.")
        return _past(history.snapshot(_moment(at)))

    # -- submitting ------------------------------------------------------------------------------

    def submit(
        self, action: str, reason: str, where: str = "", keys: Sequence[str] = (), limit: int = 0,
        attempts: str = "keep", pace: str = "now", ticket: str | None = None,
    ) -> Any:
        """Plan the change and submit it. The rules of the config decide later who may approve it."""
        session = self._session
        if is_blank(reason):
            raise Refused("A reason is required", fix="Say why a person should approve this.")
        if sum(one.state is ProposalState.OPEN for one in session.trail.proposals(MOST_OPEN * 5)) >= MOST_OPEN:
            raise Refused(f"{MOST_OPEN} proposals wait already", fix="Wait until people have decided some of them.")
        selection = _selection(where, keys, limit)
        operation = Operation(Action(action), Attempts(attempts))
        blocks = _Blocks()
        planner = Planner(
            {backend.name: backend for backend in session.backends}, blocks, session.clock, session.limits.max_items,
            _Deadline(_SECONDS), session.read_only_backends,
        )
        plan = planner.propose(selection, operation, parse_pace(pace))
        if not plan.changes:
            raise Refused("Nothing would change", fix=" ".join(list(plan.skipped)[:5]))
        proposal = session.trail.submit(
            plan, blocks.blocks, session.who, session.origin, reason, ticket, session.clock.now(),
            rules=session.rules, client=self.client,
        )
        return {
            **_proposal(proposal), "selected": plan.selected,
            "next": f"A person decides: retriage proposals show {proposal.plan_id}",
            "untrusted": cut({"skipped": plan.skipped, "warnings": plan.warnings, "reason": proposal.reason}),
        }


# --- values -----------------------------------------------------------------------------------------


def untrusted(text: str) -> dict[str, str]:
    """A text that somebody else wrote, marked and cut."""
    return {"untrusted": neutralise(text, LONGEST_TEXT, multiline=True)}


def cut(value: Any) -> Any:
    """The same values, with every text cut and neutralised and times as text."""
    match value:
        case str():
            return neutralise(value, LONGEST_TEXT, multiline=True)
        case datetime():
            return instant(value)
        case Mapping():
            return {neutralise(str(key), _LONGEST_NAME): cut(one) for key, one in value.items()}
        case list() | tuple():
            return [cut(one) for one in value]
        case _:
            return value


def _life(life: CauseLife | None) -> dict[str, Any]:
    """The state of a cause; None for failures without error text, and where it is not known."""
    return {"state": None if life is None else life.state.value, "since": None if life is None else _when(life.since)}


def _by_people(life: CauseLife | None) -> dict[str, Any]:
    """What people said about a cause."""
    if life is None:
        return {}
    notes = [{"at": note.at, "by": note.by, "text": note.text} for note in life.notes[-MOST_NOTES:]]
    return {name: value for name, value in (("owner", life.owner), ("by", life.by), ("notes", notes)) if value}


def _rows(limit: int) -> int:
    return max(1, min(limit, MOST_ROWS))


def _counts(counts: Mapping[Condition, Count]) -> dict[str, Any]:
    return {
        condition.value: count.value if count.exact else _inexact(count)
        for condition, count in counts.items() if count.value
    }


def _inexact(count: Count) -> dict[str, Any]:
    return {"about" if count.estimated else "at_least": count.value, "exact": False}


def _when(at: datetime | None) -> str | None:
    return None if at is None else instant(at.replace(microsecond=0))


def _faults(faults: Mapping[str, Fault]) -> dict[str, Any]:
    return {"not_read": {name: untrusted(str(fault)) for name, fault in faults.items()}} if faults else {}


def _selection(where: str, keys: Sequence[str], limit: int) -> Selection:
    if keys and (where or limit):
        raise UsageFault("Give either keys, or where and limit")
    if keys:
        return Marked(tuple(ItemKey.parse(key) for key in keys))
    return Matching(Filter.parse(where), Sort(), limit if limit > 0 else None)


def _proposal(one: Proposal) -> dict[str, Any]:
    return {
        "proposal": one.plan_id, "state": one.state.value, "action": one.action, "items": one.items,
        "systems": dict(one.changes), "expires_at": _when(one.expires_at), "override": one.override_id,
        "untrusted": cut({"who": one.who, "client": one.client, "reason": one.reason, "ticket": one.ticket,
                          "decided_by": one.decided_by, "note": one.note}),
    }


def _moment(text: str) -> datetime:
    try:
        return parse_moment(text)
    except ValueError:
        raise UsageFault("Not a time", fix="Write it as 2026-11-18T03:00Z.") from None


def _past(then: Snapshot) -> dict[str, Any]:
    return {
        "at": _when(then.at),
        "systems": {
            name: _counts(system.counts) for name, system in then.systems.items()
        },
        "causes": [
            {"cause": cause.signature, "count": cause.count, "exact": cause.exact, "systems": dict(cause.backends),
             "untrusted": cut({"sample": cause.sample})}
            for cause in list(then.causes)[:MOST_ROWS]
        ],
    }
