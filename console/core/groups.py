"""Failures grouped by cause across backends, while they stream by."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from console.core.backend import Backend
from console.core.faults import BackendFault, Fault, QueryFault
from console.core.grouping import Group, Grouping
from console.core.listing import broken_promise
from console.core.ports import Never, Stop
from console.core.query import Field, Filter

RECENT = timedelta(hours=1)
"""What a group's trend looks back on."""

_FIRST_LOOK, _BETWEEN_LOOKS = 5_000, 20_000
"""Rows between two looks at what has been found so far."""


@dataclass(slots=True)
class Groups:
    """Counts every failure of every backend by signature; `partial` sees the groups as they grow."""

    backends: Sequence[Backend]
    filter: Filter
    now: datetime
    stop: Stop = field(default_factory=Never)
    partial: Callable[[list[Group]], None] | None = None
    faults: dict[str, Fault] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)
    rows: int = 0

    def collect(self) -> list[Group]:
        grouping = Grouping()
        for backend in self.backends:
            asked = self.filter.for_backend(backend.name)
            if asked is None:
                continue
            try:
                self._add(grouping, backend, asked.without(Field.SIGNATURE))
                self.answered.add(backend.name)
            except Fault as fault:
                if not isinstance(fault, BackendFault):
                    raise
                self.faults[backend.name] = fault
            except Exception as error:  # noqa: BLE001  as in Listing
                self.faults[backend.name] = broken_promise(backend, error)
        self.rows = grouping.rows
        return self._wanted(grouping.groups())

    def _add(self, grouping: Grouping, backend: Backend, filter: Filter) -> None:
        next_look = grouping.rows + _FIRST_LOOK
        for batch in backend.errors(filter, self.now, self.stop):
            grouping.add(batch.rows, backend.name, self.now - RECENT, instant=batch.instant)
            if self.partial is not None and grouping.rows >= next_look:
                next_look = grouping.rows + min(grouping.rows, _BETWEEN_LOOKS)
                self.partial(self._wanted(grouping.groups()))

    def _wanted(self, groups: list[Group]) -> list[Group]:
        terms = self.filter.terms_for(Field.SIGNATURE)
        for term in terms:
            for value in term.values:
                fitting = [
                    g.signature for g in groups if isinstance(value, str) and (g.signature or "").startswith(value)
                ]
                if len(fitting) > 1 and not term.negated:
                    raise QueryFault(
                        f"signature {value} fits {fitting[0]} and {fitting[1]}",
                        column=term.column,
                        fix="Write more digits",
                    )

        return [group for group in groups if all(term.matches_signature(group.signature) for term in terms)]
