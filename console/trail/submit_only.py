"""The trail for a process that may only read and submit plans, such as the one an agent talks to."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from console.core.access import AccessRules
from console.core.agent import AgentTrail
from console.core.confirm import Origin, Who
from console.core.override import Override
from console.core.plan import Block, Plan
from console.core.ports import Clock, Record
from console.core.proposals import Proposal
from console.trail.store import TrailStore, open_trail


class SubmitOnlyTrail:
    """Reads through a connection that cannot write. Only `submit` opens another one, for as long as it takes."""

    def __init__(self, url: str, *, anchor: str | None, clock: Clock) -> None:
        self._url = url
        self._anchor = anchor
        self._clock = clock
        self._reading: TrailStore = open_trail(url, read_only=True, anchor=anchor, clock=clock)

    def overrides(self, limit: int | None = None) -> Sequence[Override]:
        return self._reading.overrides(limit)

    def override(self, override_id: str) -> Override:
        return self._reading.override(override_id)

    def records_of(self, kinds: Sequence[str], *, after: int = 0, limit: int = 1_000) -> Sequence[Record]:
        return self._reading.records_of(kinds, after=after, limit=limit)

    def proposals(self, limit: int | None = None) -> Sequence[Proposal]:
        return self._reading.proposals(limit)

    def proposal(self, plan_id: str) -> Proposal:
        return self._reading.proposal(plan_id)

    def submit(
        self, plan: Plan, blocks: Sequence[Block], who: Who, origin: Origin, reason: str, ticket: str | None,
        now: datetime, *, rules: AccessRules, client: str | None,
    ) -> Proposal:
        """Store a plan with its rows and record it as a proposal."""
        writing = open_trail(self._url, read_only=False, anchor=self._anchor, clock=self._clock)
        try:
            writing.add_blocks(plan.nonce, blocks)
            writing.seal(plan)
            return writing.submit(plan, who, origin, reason, ticket, now, rules=rules, client=client)
        finally:
            writing.close()

    def close(self) -> None:
        self._reading.close()


def _implements(trail: SubmitOnlyTrail) -> AgentTrail:
    """Lets the type checker prove that the protocol is implemented in full."""
    return trail
