"""What can be chosen in a plan: the paces, the attempts and the switches that apply to the selected systems."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from console.core.advice import Step
from console.core.backend import Action, Attempts, Requeues
from console.core.capabilities import DISCARD_AS, SwitchSpec
from console.core.confirm import ConfirmationForm
from console.core.pace import Canary, Now, Over, Pace, Rate
from console.core.plan import Plan, Selection
from console.core.session import Session
from console.ui.cells import thousands
from console.ui.widgets.choices import RowOption, Switch

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

CANARY = Canary(10)
CUSTOM = "custom"
_PACES: tuple[tuple[Pace, str], ...] = (
    (CANARY, str(CANARY)),
    (Now(), "now"),
    (Over(timedelta(minutes=30)), "over 30 min"),
    (Rate(10), "10/s"),
)
_INCLUDE = "include "


class PlanChoices:
    """The options of one plan, by the systems it concerns."""

    def __init__(self, session: Session, selection: Selection | None, action: Action) -> None:
        meant = () if selection is None else session.backends
        self.backends = [
            b for b in meant if isinstance(b, Requeues) and selection is not None and selection.concerns(b.name)
        ]
        self._changing = self.backends
        """The systems in which the last plan changes something."""
        self._session = session
        self._action = action
        self._requeues = action is Action.REQUEUE
        self._concerned: dict[str, int] = {}
        """How many items a switch would add or change, by the last plan in which it was off."""

    @property
    def tells_results(self) -> bool:
        """Whether every system shows that an item has run, which a canary waits for."""
        return self._requeues and bool(self.backends) and all(b.abilities.tells_executions for b in self.backends)

    @property
    def first_pace(self) -> Pace:
        """The pace of the first plan, before the number of items is known."""
        return CANARY if self.tells_results else Now()

    def default_pace(self, plan: Plan) -> Pace:
        """A canary where the number of items has to be typed."""
        many = ConfirmationForm(plan, self._session.limits).needs_number and self._large_enough(plan)
        return CANARY if many and self.tells_results else Now()

    def _large_enough(self, plan: Plan) -> bool:
        return any(part.changes > CANARY.size for part in plan.parts)

    def paces(self, plan: Plan) -> list[RowOption]:
        if not self._requeues:
            return []
        fits = self.tells_results and self._large_enough(plan)
        known = [RowOption(str(pace), label) for pace, label in _PACES if fits or not isinstance(pace, Canary)]
        return [*known, RowOption(CUSTOM, "custom…")]

    @property
    def attempts(self) -> list[RowOption]:
        """Empty where there is nothing to choose."""
        offered = {attempts for backend in self.backends for attempts in backend.abilities.attempts}
        if not self._requeues or Attempts.RESET not in offered:
            return []
        return [RowOption(attempts.value, attempts.value) for attempts in Attempts]

    @property
    def ways(self) -> list[RowOption]:
        """The ways to discard an item, where a system has several; empty where there is nothing to choose."""
        specs = [spec for spec in self._offered() if spec.id.startswith(DISCARD_AS)]
        return [RowOption("", "not chosen"), *(RowOption(spec.id, spec.label) for spec in specs)] if specs else []

    def meaning(self, way: str) -> str:
        """What a way to discard does."""
        return self._session.switches[way].help if way else "Choose how these items are discarded."

    def note(self, plan: Plan) -> None:
        """Look at the systems of this plan only, and remember how many items each switch would concern."""
        named = {part.backend: part.changes for part in plan.parts}
        self.backends = [backend for backend in self.backends if backend.name in named]
        self._changing = [backend for backend in self.backends if named[backend.name]]
        for flag in self._session.switches:
            if flag not in plan.operation.flags:
                self._concerned[flag] = concerned_by(plan, flag)

    def switches(self, chosen: AbstractSet[str]) -> tuple[list[Switch], list[Switch]]:
        """The switches that would change something: those that include more items, and the others. `chosen` are on."""
        including: list[Switch] = []
        others: list[Switch] = []
        for spec in self._offered():
            on, count = spec.id in chosen, self._concerned.get(spec.id, 0)
            includes = spec.label.startswith(_INCLUDE)
            applies = not includes and any(spec.id in backend.abilities.flags for backend in self._changing)
            if spec.id.startswith(DISCARD_AS) or not (on or count or applies):
                continue
            label = spec.label.removeprefix(_INCLUDE) + (f" ({thousands(count)})" if count else "")
            (including if includes else others).append(Switch(spec.id, label, spec.help, on))
        return including, others

    def _offered(self) -> Sequence[SwitchSpec]:
        """The switches of this action that at least one of the systems looks at."""
        known: Mapping[str, SwitchSpec] = self._session.switches
        own = [spec for spec in known.values() if self._action in spec.actions]
        return [spec for spec in own if any(spec.id in backend.abilities.flags for backend in self.backends)]


def concerned_by(plan: Plan, flag: str) -> int:
    """How many items a switch concerns: those whose reason or warning advises it."""
    return sum(
        count
        for reasons in (plan.skipped, plan.warnings)
        for reason, count in reasons.items()
        if (advice := plan.advice.get(reason)) is not None and advice.step is Step.TURN_ON and advice.value == flag
    )


def added_by_attempts(plan: Plan, attempts: Attempts) -> int:
    """How many skipped items another choice of attempts would include."""
    return sum(
        count
        for reason, count in plan.skipped.items()
        if (advice := plan.advice.get(reason)) is not None
        and advice.step is Step.SET_ATTEMPTS
        and advice.value == attempts
    )
