from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from console.core.backend import OutcomeKind
from console.core.faults import LeaseLost, NoSuchOverride, OverrideRunning, PlanStale, Refused, TrailBroken
from console.core.override import NOT_APPLIED, ItemOutcome, OverrideState, Request
from console.core.reconcile import final_outcomes
from console.trail import verify as verifying
from console.trail.leases import owner_token
from console.trail.store import TrailStore
from tests.trail.world import START, YES, FrozenClock, begun, carried, chunk, results, sealed, silent, trail_at

ELSEWHERE = "other-host boot 1 1 r"
LATER = START + timedelta(seconds=61)


def kinds(trail: TrailStore) -> list[str]:
    return [record.kind for record in trail.records()]


def test_an_override_from_confirmation_to_the_end(trail: TrailStore) -> None:
    plan = carried(trail)
    trail.mark("op1", OverrideState.FINISHED, "all done", START)
    assert kinds(trail) == ["planned", "confirmed", *["intent", "outcome"] * 3, "state"]
    found = trail.override("op1")
    assert (found.plan_id, found.state, found.counts) == (plan.id, OverrideState.FINISHED, {"applied": 6})
    assert (found.who, found.reason, found.ticket, found.note) == ("ann (says Ann A.)", "disk is back", "OPS-7", "all done")
    assert (found.owner, found.heartbeat) == ("", None)
    assert [item for batch in trail.outcomes("op1") for item in batch] == results(0, 5)
    assert [intent.ranges for intent in trail.intents("op1")] == [((0, 1),), ((2, 3),), ((4, 5),)]
    assert trail.intents("op1")[0].at == START
    assert trail.unresolved() == trail.open_intents("op1") == []
    assert trail.verify().ok


def test_the_confirmation_is_recorded_in_full(trail: TrailStore) -> None:
    plan, owner = begun(trail)
    body = trail.records()[1].body
    assert body["planned"] == 1
    assert body["plan_hash"] == plan.hash
    assert body["facts"] == {
        "uid": 1000, "login": "ann", "host": "host", "tty": "pts/1", "pid": 4711, "version": "0.1.0",
    }
    assert body["claims"] == {"name": "Ann A.", "ssh_peer": "10.0.0.9"}
    assert body["by"] == "ann (says Ann A.)"
    assert (body["reason"], body["ticket"], body["count"], body["owner"]) == ("disk is back", "OPS-7", 3, owner)
    assert (body["action"], body["attempts"], body["pace"]) == ("requeue", "keep", "over 30m")


def test_hostile_words_are_kept(trail: TrailStore) -> None:
    plan = sealed(trail)
    trail.begin("op1", plan, dataclasses.replace(YES, reason="a\x00\udcff"), owner_token(), START)
    trail.mark("op1", OverrideState.STOPPED, "n\x00\ud800", START)
    assert (trail.override("op1").reason, trail.override("op1").note) == ("a\x00\udcff", "n\x00\ud800")
    assert trail.verify().ok


def test_overrides_are_listed_newest_first_and_found_by_prefix(trail: TrailStore) -> None:
    for number, override_id in enumerate(("opa", "opa1", "opb")):
        begun(trail, override_id, places=(f"/{number}",))
    assert [override.override_id for override in trail.overrides()] == ["opb", "opa1", "opa"]
    assert [override.override_id for override in trail.overrides(1)] == ["opb"]
    assert (trail.override("opb").override_id, trail.override("opa").override_id) == ("opb", "opa")
    for unknown in ("", "op", "x", "\udcff", "opa\x00", "x" * 3000):
        with pytest.raises(NoSuchOverride):
            trail.override(unknown)


def test_the_confirmed_hash_is_that_of_the_record(trail: TrailStore) -> None:
    plan, _ = begun(trail, "op1", places=("/a",))
    other, _ = begun(trail, "op2", places=("/b",))
    assert [trail.confirmed_hash(override_id) for override_id in ("op1", "op2")] == [plan.hash, other.hash]

    def edit(sql: str) -> None:
        trail._storage.write(lambda writing: writing.run(sql))

    edit("UPDATE override_state SET plan_id = 'p', confirmed = '{}' WHERE override_id = 'op1'")
    assert trail.confirmed_hash("op1") == plan.hash
    trail.mark("op1", OverrideState.STOPPED, "", START)
    for seq in (4, 5, 99):
        edit(f"UPDATE override_state SET seq = {seq} WHERE override_id = 'op1'")
        with pytest.raises(TrailBroken, match="op1"):
            trail.confirmed_hash("op1")
    with pytest.raises(TrailBroken):
        trail.confirmed_hash("op\udcff")


# -- leases --------------------------------------------------------------------------------------


def test_one_running_override_per_place_all_or_nothing(trail: TrailStore) -> None:
    _, owner = begun(trail, places=("/a", "/b"))
    before = kinds(trail)
    for places in (("/b",), ("/c", "/a")):
        plan = sealed(trail, places=places)
        with pytest.raises(OverrideRunning, match="op1"):
            trail.begin("op2", plan, YES, owner, START)
    assert kinds(trail) == before
    begun(trail, "op3", places=("/c",))
    trail.mark("op1", OverrideState.STOPPED, "", START)
    begun(trail, "op4", places=("/b",))


def test_a_live_owner_is_not_taken_over_a_silent_one_is(trail: TrailStore) -> None:
    begun(trail, owner=ELSEWHERE)
    with pytest.raises(OverrideRunning):
        trail.take_over("op1", "me", START + timedelta(seconds=60), YES)
    silent(trail)
    trail.take_over("op", "me", LATER, YES)
    assert trail.override("op1").owner == "me"
    assert trail.records()[-1].kind == "takeover"
    assert trail.records()[-1].body["previous_owners"] == [ELSEWHERE]
    for attempt in (
        lambda: trail.intend("op1", ELSEWHERE, chunk(0, 1), LATER),
        lambda: trail.beat("op1", ELSEWHERE, LATER),
        lambda: trail.mark("op1", OverrideState.STOPPED, "", LATER, owner=ELSEWHERE),
    ):
        with pytest.raises(LeaseLost):
            attempt()
    assert kinds(trail) == ["planned", "confirmed", "takeover"]


def test_a_beat_keeps_the_lease_alive(trail: TrailStore) -> None:
    begun(trail, owner=ELSEWHERE)
    silent(trail)
    assert not trail.override("op1").alive
    assert trail.beat("op1", ELSEWHERE, LATER) is None
    assert trail.override("op1").alive
    with pytest.raises(OverrideRunning):
        trail.take_over("op1", "me", LATER, YES)


def test_a_stopped_override_is_resumed_a_finished_one_not(trail: TrailStore) -> None:
    begun(trail)
    trail.mark("op1", OverrideState.STOPPED, "", START)
    trail.take_over("op1", owner_token(), START, YES)
    assert trail.override("op1").state is OverrideState.RUNNING
    trail.mark("op1", OverrideState.FINISHED, "", START)
    with pytest.raises(PlanStale):
        trail.take_over("op1", owner_token(), START, YES)
    with pytest.raises(NoSuchOverride):
        trail.mark("op2", OverrideState.FINISHED, "", START)


def test_beginning_over_a_dead_owner_stops_their_override_on_record(trail: TrailStore) -> None:
    begun(trail, owner=ELSEWHERE, places=("/a", "/b"))
    plan = sealed(trail, places=("/b",))
    silent(trail)
    trail.begin("op2", plan, YES, "me", LATER)
    assert kinds(trail) == ["planned", "confirmed", "planned", "state", "confirmed"]
    assert trail.override("op1").state is OverrideState.STOPPED
    assert "op2" in trail.override("op1").note
    with pytest.raises(LeaseLost):
        trail.intend("op1", ELSEWHERE, chunk(0, 1), LATER)
    assert trail.override("op2").owner == "me"


def test_only_who_announced_an_intent_concludes_it_without_the_lease(trail: TrailStore) -> None:
    begun(trail, owner=ELSEWHERE)
    seq = trail.intend("op1", ELSEWHERE, chunk(0, 1), START)
    silent(trail)
    trail.take_over("op1", "me", LATER, YES)
    with pytest.raises(LeaseLost):
        trail.conclude("op1", "a third", seq, results(0, 1), {}, LATER)
    trail.conclude("op1", ELSEWHERE, seq, results(0, 1), {}, LATER)
    assert trail.open_intents("op1") == []
    with pytest.raises(PlanStale):
        trail.conclude("op1", "me", seq, results(0, 1, NOT_APPLIED), {}, LATER)
    with pytest.raises(LeaseLost):
        trail.intend("op1", ELSEWHERE, chunk(2, 3), LATER)
    assert trail.override("op1").counts == {"applied": 2}
    assert trail.verify().what == ""


def test_consoles_whose_clocks_differ_do_not_take_each_other_for_dead(postgres_url: str) -> None:
    """A trail for a team goes by its server's clock."""
    hours = timedelta(hours=2)
    ahead = FrozenClock()
    ahead.moment = START + hours
    with trail_at(postgres_url) as trail, trail_at(postgres_url, ahead) as other:
        begun(trail, owner=ELSEWHERE)
        trail.intend("op1", ELSEWHERE, chunk(0, 1), START)
        assert other.override("op1").alive
        assert other.overrides()[0].alive
        assert other.unresolved() == []
        with pytest.raises(OverrideRunning):
            other.take_over("op1", "me", ahead.now(), YES)
        other.ask("op1", Request.PAUSE, YES.who, YES.origin)
        assert trail.beat("op1", ELSEWHERE, START - hours) is Request.PAUSE
        assert other.override("op1").alive
        silent(trail)
        assert not trail.override("op1").alive
        other.take_over("op1", "me", ahead.now() - 2 * hours, YES)


@pytest.mark.parametrize("batch", [1, 2, 5_000])
@pytest.mark.parametrize("over", [False, True])
def test_what_a_process_had_changed_when_it_was_settled_is_recorded_late(
    trail: TrailStore, monkeypatch: pytest.MonkeyPatch, over: bool, batch: int
) -> None:
    """Suspended within its write, settled and done again by another: what it then wrote is on record all the same."""
    monkeypatch.setattr(verifying, "_BATCH", batch)
    begun(trail, owner=ELSEWHERE)
    seq = trail.intend("op1", ELSEWHERE, chunk(0, 5), START)
    silent(trail)
    trail.take_over("op1", "me", LATER, YES)
    trail.conclude("op1", "me", seq, results(0, 3, NOT_APPLIED) + results(4, 4) + results(5, 5, "unknown"), {}, LATER)
    again = trail.intend("op1", "me", chunk(0, 1), LATER)
    trail.conclude("op1", "me", again, results(0, 0) + results(1, 1, "changed"), {}, LATER)
    if over:
        trail.mark("op1", OverrideState.FINISHED, "", LATER)
    reported = results(0, 0, "changed") + results(1, 2) + results(3, 3, "failed") + results(4, 5)
    trail.conclude("op1", ELSEWHERE, seq, reported, {"backend": "queue"}, LATER)
    late = trail.records()[-1]
    assert (late.kind, late.body["intent"], late.body["owner"]) == ("late", seq, ELSEWHERE)
    assert (late.body["counts"], late.body["replaced"]) == ({"applied": 3}, {"changed": 1, "unknown": 1})
    assert list(trail.item_outcomes(late.seq)) == [results(1, 2) + results(5, 5)]
    assert trail.override("op1").counts == {"applied": 5}
    assert [(found.ranges, found.at) for found in trail.intents("op1")][-1] == (((1, 2), (5, 5)), START)
    assert trail.open_intents("op1") == []
    assert trail.verify().what == ""
    trail.conclude("op1", ELSEWHERE, seq, reported, {"backend": "queue"}, LATER)
    assert trail.records()[-1] == late
    begun(trail, "op2", places=("/b",))
    assert trail.verify().what == ""


def test_what_was_changed_late_is_not_counted_again_by_the_process_that_found_it_changed(trail: TrailStore) -> None:
    """A suspended process wakes and writes between the intent and the write of the one that took over."""
    begun(trail, owner=ELSEWHERE)
    seq = trail.intend("op1", ELSEWHERE, chunk(0, 5), START)
    silent(trail)
    trail.take_over("op1", "me", LATER, YES)
    trail.conclude("op1", "me", seq, results(0, 5, NOT_APPLIED), {}, LATER)
    again = trail.intend("op1", "me", chunk(0, 5), LATER)
    trail.conclude("op1", ELSEWHERE, seq, results(0, 3) + results(4, 5, "changed"), {"backend": "queue"}, LATER)
    trail.conclude("op1", "me", again, results(0, 3, "changed") + results(4, 5), {}, LATER)
    concluded = trail.records()[-1]
    assert (concluded.kind, concluded.body["counts"], concluded.body["already_changed"]) == ("outcome", {"applied": 2}, 4)
    assert trail.override("op1").counts == {"applied": 6}
    assert {item.outcome for item in final_outcomes(trail, "op1")} == {"applied"}
    assert trail.verify().what == ""


def test_an_outcome_is_recorded_once(trail: TrailStore) -> None:
    begun(trail, owner=ELSEWHERE)
    seq = trail.intend("op1", ELSEWHERE, chunk(0, 1), START)
    silent(trail)
    trail.take_over("op1", "me", LATER, YES)
    trail.conclude("op1", "me", seq, results(0, 0, NOT_APPLIED) + results(1, 1), {}, LATER)
    assert trail.records()[-1].kind == "settle"
    assert trail.override("op1").counts == {"applied": 1}
    with pytest.raises(PlanStale):
        trail.conclude("op1", "me", seq, results(0, 1), {}, LATER)
    with pytest.raises(PlanStale):
        trail.conclude("op1", "me", 1, results(0, 1), {}, LATER)
    assert trail.verify().ok


def test_unresolved_are_open_intents_of_the_dead(trail: TrailStore) -> None:
    begun(trail, owner=ELSEWHERE)
    seq = trail.intend("op1", ELSEWHERE, {**chunk(0, 1), "ranges": [[0, 0], [3, 5]]}, START)
    assert trail.unresolved() == []
    silent(trail)
    (found,) = trail.unresolved()
    assert (found.seq, found.override_id, found.backend, found.ranges) == (seq, "op1", "queue", ((0, 0), (3, 5)))


def test_an_intent_that_could_not_be_read_again_is_not_recorded(trail: TrailStore) -> None:
    _, owner = begun(trail)
    with pytest.raises(KeyError):
        trail.intend("op1", owner, {"backend": "queue"}, START)
    assert kinds(trail) == ["planned", "confirmed"]
    assert trail.intend("op1", owner, chunk(0, 1), START) == 3


# -- requests ------------------------------------------------------------------------------------


def test_a_pause_stays_until_continued_a_continue_is_returned_once(trail: TrailStore, url: str) -> None:
    _, owner = begun(trail)
    with trail_at(url) as another:
        another.ask("op", Request.PAUSE, YES.who, YES.origin)
        assert [trail.beat("op1", owner, START) for _ in range(2)] == [Request.PAUSE] * 2
        another.ask("op1", Request.CONTINUE, YES.who, YES.origin)
        assert [trail.beat("op1", owner, START) for _ in range(2)] == [Request.CONTINUE, None]


def test_a_stop_is_never_taken_back(trail: TrailStore) -> None:
    _, owner = begun(trail)
    for request in (Request.PAUSE, Request.STOP, Request.CONTINUE, Request.PAUSE):
        trail.ask("op1", request, YES.who, YES.origin)
    assert [trail.beat("op1", owner, START) for _ in range(2)] == [Request.STOP] * 2
    trail.mark("op1", OverrideState.STOPPED, "", START)
    with pytest.raises(Refused):
        trail.ask("op1", Request.STOP, YES.who, YES.origin)
    trail.take_over("op1", owner, START, YES)
    assert trail.beat("op1", owner, START) is None


def test_whom_nobody_carries_out_nobody_can_ask(trail: TrailStore) -> None:
    begun(trail, owner=ELSEWHERE)
    trail.mark("op1", OverrideState.PAUSED, "", START, owner=ELSEWHERE)
    trail.ask("op1", Request.PAUSE, YES.who, YES.origin)
    silent(trail)
    for request in Request:
        with pytest.raises(Refused) as refused:
            trail.ask("op1", request, YES.who, YES.origin)
        assert "retriage overrides resume op1" in refused.value.fix
    trail.beat("op1", ELSEWHERE, LATER)
    trail.ask("op1", Request.STOP, YES.who, YES.origin)
    assert trail.beat("op1", ELSEWHERE, LATER) is Request.STOP


# -- outcomes ------------------------------------------------------------------------------------


def test_outcomes_are_kept_in_ordinal_order_and_bound_to_their_record(trail: TrailStore) -> None:
    _, owner = begun(trail)
    seq = trail.intend("op1", owner, chunk(0, 2), START)
    mixed = [ItemOutcome(2, "queue/c", OutcomeKind.REJECTED, "unique\x1f\nindex"), *results(0, 1)]
    trail.conclude("op1", owner, seq, mixed, {"backend": "queue"}, START)
    body = trail.records()[-1].body
    assert (body["items_count"], body["counts"], body["intent"]) == (3, {"applied": 2, "rejected": 1}, seq)
    assert [item for batch in trail.outcomes("op1") for item in batch] == sorted(mixed)
    assert trail.verify().ok


def test_many_outcomes_are_streamed(trail: TrailStore) -> None:
    _, owner = begun(trail, changes=1)
    seq = trail.intend("op1", owner, chunk(0, 12_344), START)
    trail.conclude("op1", owner, seq, results(0, 12_344), {}, START)
    batches = list(trail.outcomes("op1"))
    assert len(batches) > 1
    assert [item for batch in batches for item in batch] == results(0, 12_344)
    assert trail.verify().ok


def test_the_history_of_an_item(trail: TrailStore) -> None:
    assert trail.history_of("queue/000001") == []
    carried(trail)
    assert trail.history_of("queue/000001") == [(START, "requeue by ann (says Ann A.): requeued; disk is back [op1]")]
    assert trail.history_of("queue/none") == []


def test_records_forwards_and_backwards(trail: TrailStore) -> None:
    for number in range(5):
        trail.refuse({"n": number}, START)
    trail.refuse({"version": "0.1.0"}, START)
    assert [record.seq for record in trail.records(after=2, limit=2)] == [3, 4]
    assert [record.seq for record in trail.newest(limit=2)] == [6, 5]
    assert [record.seq for record in trail.newest(before=3)] == [2, 1]
    found = trail.record(6)
    assert found is not None
    assert (found.kind, found.body["version"], trail.record(7)) == ("refusal", "0.1.0", None)
