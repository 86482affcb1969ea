"""The preview of a plan, as lines: how many items change in which system, what is skipped and why, and the items."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from console.core.backend import Action, OutcomeKind, Requeues
from console.core.override import outcome_label
from console.core.plan import Plan
from console.core.session import Session
from console.ui import safe
from console.ui.advice import Switches, with_advice
from console.ui.cells import Cell, thousands
from console.ui.preview import PlannedItem, condition, counted, item_tables, undo_words
from console.ui.widgets.text_pane import Line


def plan_lines(
    plan: Plan, items: Sequence[PlannedItem], session: Session, errors: Mapping[str, str], *, width: int, until: str
) -> Iterator[Line]:
    """The whole preview. `items` are the first ones of the plan, `errors` one error for each cause that is known."""
    yield _total(plan, session)
    yield from _systems(plan, session)
    yield from counted("Skipped, not touched", _worded(plan, session.switches, plan.skipped), "plain")
    yield from counted("Warnings", _worded(plan, session.switches, plan.warnings), "warning")
    if plan.undo_of is None and len(plan.by_condition) > 1:
        yield from counted("By condition", {condition(name): n for name, n in plan.by_condition.items()}, "plain")
    if len(plan.by_cause) > 1:
        causes = {f"{cause}  {errors.get(cause, '')}".rstrip(): count for cause, count in plan.by_cause.items()}
        yield from counted("By cause", causes, "plain")
    if items:
        yield []
        yield [Cell("Items", "muted")]
        yield from item_tables(items, width)
        if plan.changes > len(items):
            yield [Cell(f"  and {thousands(plan.changes - len(items))} more", "muted")]
    if plan.changes:
        yield []
        yield [Cell(f"plan {plan.id}  {plan.hash[:16]}…  can be confirmed until {until}", "muted")]


def _total(plan: Plan, session: Session) -> Line:
    if not plan.changes:
        return [Cell("Nothing to change.", "error"), Cell(f" All {thousands(plan.selected)} selected are skipped.")]
    done = safe.line(outcome_label(OutcomeKind.APPLIED, plan.operation.action, session.actions))
    return [Cell(thousands(plan.changes), "accent"), Cell(f" of {thousands(plan.selected)} selected will be {done}")]


def _systems(plan: Plan, session: Session) -> Iterator[Line]:
    """Each system with the number of its items, and whether the change can be undone there. Those without an item are
    in one line."""
    changing = [part for part in plan.parts if part.changes]
    width = max((len(part.backend) for part in changing), default=0)
    backends = {backend.name: backend for backend in session.backends}
    action = plan.operation.action
    for part in changing:
        words = list(_undo(backends.get(part.backend), action)) if action != Action.UNDO else []
        count, name = safe.fit(thousands(part.changes), 7, right=True), safe.line(part.backend).ljust(width + 2)
        yield [Cell(f"  {count}  "), Cell(name), *words[:1]]
        yield from ([Cell(" " * 11), cell] for cell in words[1:])
    if unchanged := [safe.line(part.backend) for part in plan.parts if not part.changes]:
        yield [Cell(f"  {safe.fit('0', 7, right=True)}  "), Cell(", ".join(unchanged), "muted")]


def _undo(backend: object, action: str) -> Iterator[Cell]:
    if not isinstance(backend, Requeues):
        return
    yield Cell(undo_words(backend.abilities.undo_of(action), action), "muted")
    if backend.abilities.guard_is_weak:
        yield Cell("weak guard: does not notice an item that changed and changed back", "warning")


def _worded(plan: Plan, switches: Switches, counts: Mapping[str, int]) -> dict[str, int]:
    return {with_advice(text, plan.advice, switches): count for text, count in counts.items()}
