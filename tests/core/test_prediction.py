"""Predictions in verdicts, and what front ends show when nobody can tell."""

from __future__ import annotations

from datetime import UTC, datetime

from console.cli.items import _RUNS_AGAIN, next_text
from console.core.export import record
from console.core.item import Condition, Item, ItemKey, Verdict, Window
from console.core.prediction import Prediction
from console.ui.cells import next_retry

NOW = datetime(2026, 11, 18, 3, tzinfo=UTC)
DUE = Window.at(NOW)
JUDGED = Verdict(Condition.RETRYING, "1 of 3 attempts used, due now", DUE, True, True)


def item(verdict: Verdict) -> Item:
    return Item(ItemKey("jobs", ("1",)), "mail", "pending", 1, 3, verdict, None, None, None, NOW)


def test_a_prediction_that_it_runs_keeps_the_reason_and_may_know_the_time() -> None:
    assert Prediction(True).apply(JUDGED) == JUDGED
    later = Window.at(NOW.replace(hour=4))
    assert Prediction(True, at=later).apply(JUDGED) == JUDGED._replace(next_retry=later)


def test_a_prediction_that_it_does_not_run_has_its_reason_and_no_time() -> None:
    applied = Prediction(False, "Its task is complete.").apply(JUDGED)
    assert applied == Verdict(Condition.RETRYING, "Its task is complete.", None, False, True)


def test_a_prediction_that_nobody_can_make_has_its_reason_and_the_time_when_it_is_due() -> None:
    applied = Prediction(None, "It waits for reserve, which may fail.").apply(JUDGED)
    assert applied == Verdict(Condition.RETRYING, "It waits for reserve, which may fail.", DUE, None, True)


def test_front_ends_say_that_nobody_can_tell() -> None:
    doubtful = item(Prediction(None, "Nothing says which worker takes it.").apply(JUDGED))
    assert record(doubtful)["will_run_again"] is None
    assert next_text(doubtful, NOW) == "not known"
    assert _RUNS_AGAIN[doubtful.verdict.will_run_again] == "cannot tell"
    assert next_retry(doubtful, NOW).text == "not known"
    assert next_retry(item(Prediction(False, "No.").apply(JUDGED)), NOW).text == ""
