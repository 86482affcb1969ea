"""The rule for confirming a plan."""

from __future__ import annotations

import pytest

from console.core.confirm import ConfirmationForm, Limits
from console.core.faults import AllSkipped, NotConfirmed
from tests.trail.world import make_plan, plan_rows


def form(changes: int, confirm_from: int = 3) -> ConfirmationForm:
    plan = make_plan(plan_rows(changes, skipped=1))
    return ConfirmationForm(plan, Limits(confirm_from=confirm_from))


@pytest.mark.parametrize(("changes", "answer", "count"), [
    (2, "y", 2), (2, "Yes", 2), (2, "2", None), (2, "", None), (2, "n", None),
    (3, "3", 3), (3, " 3 ", 3), (3, "y", None), (3, "4", 4), (3, "٣", None), (3, "9" * 40, None),
])
def test_from_the_limit_on_the_number_itself_is_needed(changes: int, answer: str, count: int | None) -> None:
    assert form(changes).needs_number == (changes >= 3)
    assert form(changes).confirmed_count(answer) == count


@pytest.mark.parametrize(("changes", "reason", "count", "message"), [
    (3, "", 3, "Not confirmed: a reason is required. Nothing was changed."),
    (3, " \t", 3, "Not confirmed: a reason is required. Nothing was changed."),
    (3, "why", None, "Not confirmed. Nothing was changed."),
    (3, "why", 2, "Not confirmed: 2 confirmed, but the plan changes 3. Nothing was changed."),
])
def test_what_is_missing_is_named(changes: int, reason: str, count: int | None, message: str) -> None:
    fault = form(changes).problem(reason, count)
    assert isinstance(fault, NotConfirmed)
    assert str(fault) == message
    assert form(changes).problem("why", changes) is None


def test_a_plan_without_changes_cannot_be_confirmed() -> None:
    assert isinstance(form(0).problem("why", 0), AllSkipped)


def test_an_approval_always_needs_the_number() -> None:
    plan = make_plan(plan_rows(1))
    approval = ConfirmationForm(plan, Limits(confirm_from=3), approves=True)
    assert approval.needs_number
    assert approval.confirmed_count("y") is None
    assert approval.confirmed_count("1") == 1
