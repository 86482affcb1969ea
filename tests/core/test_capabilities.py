"""What a plugin offers beyond requeueing, and the words for what an override did."""

from __future__ import annotations

import pytest

from console.core.backend import Action, OutcomeKind
from console.core.capabilities import ActionSpec, SwitchSpec, offered_actions, offered_switches
from console.core.override import outcome_counts, outcome_id, outcome_label, outcome_summary, past_tense

ARCHIVE = ActionSpec("archive", "archive", "archived")
FORCE = SwitchSpec("force_archive", "force", "Archive even what still runs.")


class Stranger:
    """A backend of a plugin that core does not know."""

    offered_actions = (ARCHIVE,)
    offered_switches = (FORCE,)


def test_what_a_plugin_offers_is_found_by_its_id() -> None:
    assert offered_actions([object(), Stranger()]) == {"archive": ARCHIVE}
    assert list(offered_switches([Stranger()])) == ["include_unrecoverable", "respect_backoff", "force_archive"]


@pytest.mark.parametrize(("action", "word"), [(Action.REQUEUE, "requeued"), (Action.UNDO, "restored"), ("archive", "applied")])
def test_an_applied_action_in_json(action: str, word: str) -> None:
    assert outcome_id(OutcomeKind.APPLIED, action) == word


def test_the_words_for_outcomes() -> None:
    counts = {"unknown": 1, "applied": 89, "changed": 2, "rejected": 0}
    assert outcome_summary(counts, Action.REQUEUE) == "89 requeued, 2 changed since the plan, 1 outcome unknown"
    assert outcome_counts(counts, Action.UNDO) == {"restored": 89, "changed": 2, "unknown": 1}
    assert outcome_summary({}, Action.REQUEUE) == "nothing was changed"
    assert outcome_label("not_applied", Action.REQUEUE) == "not applied"
    assert past_tense("archive", offered_actions([Stranger()])) == "archived"
