from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from console.core.backend import OutcomeKind
from console.core.faults import LeaseLost, NoSuchOverride, OverrideRunning, PlanStale, Refused, TrailBroken
from console.core.override import NOT_APPLIED, ItemOutcome, OverrideState, Request
from console.trail import verify as verifying
from console.trail.owner import owner_token
from console.trail.store import TrailBook
from tests.trail.world import START, YES, FrozenClock, begun, book_at, carried, chunk, results, sealed, silent

ELSEWHERE = "other-host boot 1 1 r"
LATER = START + timedelta(seconds=61)


def kinds(book: TrailBook) -> list[str]:
    return [record.kind for record in book.records()]


def test_an_override_from_confirmation_to_the_end(book: TrailBook) -> None:
    plan = carried(book)
    book.mark("op1", OverrideState.FINISHED, "all done", START)
    assert kinds(book) == ["confirm", *["intent", "outcome"] * 3, "state"]
    found = book.override("op1")
    assert (found.plan_id, found.state, found.counts) == (plan.id, OverrideState.FINISHED, {"changed": 6})
    assert (found.who, found.reason, found.ticket, found.note) == ("ann (says Ann A.)", "disk is back", "OPS-7", "all done")
    assert (found.owner, found.heartbeat) == ("", None)
    assert [item for batch in book.outcomes("op1") for item in batch] == results(0, 5)
    assert [intent.ranges for intent in book.intents("op1")] == [((0, 1),), ((2, 3),), ((4, 5),)]
    assert book.intents("op1")[0].at == START
    assert book.unresolved() == book.open_intents("op1") == []
    assert book.verify().ok


def test_the_confirmation_is_recorded_in_full(book: TrailBook) -> None:
    plan, owner = begun(book)
    body = book.records()[0].body
    assert body["plan_hash"] == plan.hash
    assert body["who"] == {"uid": 1000, "login": "ann", "claimed": "Ann A."}
    assert body["whence"] == {"host": "host", "tty": "pts/1", "ssh_peer": "10.0.0.9", "pid": 4711, "version": "0.1.0"}
    assert (body["reason"], body["ticket"], body["count"], body["owner"]) == ("disk is back", "OPS-7", 3, owner)
    assert (body["action"], body["budget"], body["release"]) == ("requeue", "keep", "over 30m")


def test_hostile_words_are_kept(book: TrailBook) -> None:
    plan = sealed(book)
    book.begin("op1", plan, dataclasses.replace(YES, reason="a\x00\udcff"), owner_token(), START)
    book.mark("op1", OverrideState.STOPPED, "n\x00\ud800", START)
    assert (book.override("op1").reason, book.override("op1").note) == ("a\x00\udcff", "n\x00\ud800")
    assert book.verify().ok


def test_overrides_are_listed_newest_first_and_found_by_prefix(book: TrailBook) -> None:
    for number, op_id in enumerate(("opa", "opa1", "opb")):
        begun(book, op_id, places=(f"/{number}",))
    assert [override.op_id for override in book.overrides()] == ["opb", "opa1", "opa"]
    assert [override.op_id for override in book.overrides(1)] == ["opb"]
    assert (book.override("opb").op_id, book.override("opa").op_id) == ("opb", "opa")
    for unknown in ("", "op", "x", "\udcff", "opa\x00", "x" * 3000):
        with pytest.raises(NoSuchOverride):
            book.override(unknown)


def test_the_confirmed_hash_is_that_of_the_record(book: TrailBook) -> None:
    plan, _ = begun(book, "op1", places=("/a",))
    other, _ = begun(book, "op2", places=("/b",))
    assert [book.confirmed_hash(op_id) for op_id in ("op1", "op2")] == [plan.hash, other.hash]

    def edit(sql: str) -> None:
        book._storage.write(lambda writing: writing.run(sql))

    edit("UPDATE override_state SET plan_id = 'p', confirmed = '{}' WHERE op_id = 'op1'")
    assert book.confirmed_hash("op1") == plan.hash
    book.mark("op1", OverrideState.STOPPED, "", START)
    for seq in (2, 3, 99):
        edit(f"UPDATE override_state SET seq = {seq} WHERE op_id = 'op1'")
        with pytest.raises(TrailBroken, match="op1"):
            book.confirmed_hash("op1")
    with pytest.raises(TrailBroken):
        book.confirmed_hash("op\udcff")


# -- leases --------------------------------------------------------------------------------------


def test_one_running_override_per_place_all_or_nothing(book: TrailBook) -> None:
    _, owner = begun(book, places=("/a", "/b"))
    before = kinds(book)
    for places in (("/b",), ("/c", "/a")):
        plan = sealed(book, places=places)
        with pytest.raises(OverrideRunning, match="op1"):
            book.begin("op2", plan, YES, owner, START)
    assert kinds(book) == before
    begun(book, "op3", places=("/c",))
    book.mark("op1", OverrideState.STOPPED, "", START)
    begun(book, "op4", places=("/b",))


def test_a_live_owner_is_not_taken_over_a_silent_one_is(book: TrailBook) -> None:
    begun(book, owner=ELSEWHERE)
    with pytest.raises(OverrideRunning):
        book.take_over("op1", "me", START + timedelta(seconds=60), YES)
    silent(book)
    book.take_over("op", "me", LATER, YES)
    assert book.override("op1").owner == "me"
    assert book.records()[-1].kind == "takeover"
    assert book.records()[-1].body["from"] == [ELSEWHERE]
    for attempt in (
        lambda: book.intend("op1", ELSEWHERE, chunk(0, 1), LATER),
        lambda: book.beat("op1", ELSEWHERE, LATER),
        lambda: book.mark("op1", OverrideState.STOPPED, "", LATER, owner=ELSEWHERE),
    ):
        with pytest.raises(LeaseLost):
            attempt()
    assert kinds(book) == ["confirm", "takeover"]


def test_a_beat_keeps_the_lease_alive(book: TrailBook) -> None:
    begun(book, owner=ELSEWHERE)
    silent(book)
    assert not book.override("op1").alive
    assert book.beat("op1", ELSEWHERE, LATER) is None
    assert book.override("op1").alive
    with pytest.raises(OverrideRunning):
        book.take_over("op1", "me", LATER, YES)


def test_a_stopped_override_is_resumed_a_finished_one_not(book: TrailBook) -> None:
    begun(book)
    book.mark("op1", OverrideState.STOPPED, "", START)
    book.take_over("op1", owner_token(), START, YES)
    assert book.override("op1").state is OverrideState.RUNNING
    book.mark("op1", OverrideState.FINISHED, "", START)
    with pytest.raises(PlanStale):
        book.take_over("op1", owner_token(), START, YES)
    with pytest.raises(NoSuchOverride):
        book.mark("op2", OverrideState.FINISHED, "", START)


def test_beginning_over_a_dead_owner_stops_their_override_on_record(book: TrailBook) -> None:
    begun(book, owner=ELSEWHERE, places=("/a", "/b"))
    plan = sealed(book, places=("/b",))
    silent(book)
    book.begin("op2", plan, YES, "me", LATER)
    assert kinds(book) == ["confirm", "state", "confirm"]
    assert book.override("op1").state is OverrideState.STOPPED
    assert "op2" in book.override("op1").note
    with pytest.raises(LeaseLost):
        book.intend("op1", ELSEWHERE, chunk(0, 1), LATER)
    assert book.override("op2").owner == "me"


def test_only_who_announced_an_intent_concludes_it_without_the_lease(book: TrailBook) -> None:
    begun(book, owner=ELSEWHERE)
    seq = book.intend("op1", ELSEWHERE, chunk(0, 1), START)
    silent(book)
    book.take_over("op1", "me", LATER, YES)
    with pytest.raises(LeaseLost):
        book.conclude("op1", "a third", seq, results(0, 1), {}, LATER)
    book.conclude("op1", ELSEWHERE, seq, results(0, 1), {}, LATER)
    assert book.open_intents("op1") == []
    with pytest.raises(PlanStale):
        book.conclude("op1", "me", seq, results(0, 1, NOT_APPLIED), {}, LATER)
    with pytest.raises(LeaseLost):
        book.intend("op1", ELSEWHERE, chunk(2, 3), LATER)
    assert book.override("op1").counts == {"changed": 2}
    assert book.verify().what == ""


def test_consoles_whose_clocks_differ_do_not_take_each_other_for_dead(postgres_url: str) -> None:
    """A trail for a team goes by its server's clock."""
    hours = timedelta(hours=2)
    ahead = FrozenClock()
    ahead.moment = START + hours
    with book_at(postgres_url) as book, book_at(postgres_url, ahead) as other:
        begun(book, owner=ELSEWHERE)
        book.intend("op1", ELSEWHERE, chunk(0, 1), START)
        assert other.override("op1").alive
        assert other.overrides()[0].alive
        assert other.unresolved() == []
        with pytest.raises(OverrideRunning):
            other.take_over("op1", "me", ahead.now(), YES)
        other.ask("op1", Request.PAUSE)
        assert book.beat("op1", ELSEWHERE, START - hours) is Request.PAUSE
        assert other.override("op1").alive
        silent(book)
        assert not book.override("op1").alive
        other.take_over("op1", "me", ahead.now() - 2 * hours, YES)


@pytest.mark.parametrize("batch", [1, 2, 5_000])
@pytest.mark.parametrize("over", [False, True])
def test_what_a_process_had_changed_when_it_was_settled_is_told_late(
    book: TrailBook, monkeypatch: pytest.MonkeyPatch, over: bool, batch: int
) -> None:
    """Suspended within its write, settled and done again by another: what it then wrote is on record all the same."""
    monkeypatch.setattr(verifying, "_BATCH", batch)
    begun(book, owner=ELSEWHERE)
    seq = book.intend("op1", ELSEWHERE, chunk(0, 5), START)
    silent(book)
    book.take_over("op1", "me", LATER, YES)
    book.conclude("op1", "me", seq, results(0, 3, NOT_APPLIED) + results(4, 4) + results(5, 5, "indeterminate"), {}, LATER)
    again = book.intend("op1", "me", chunk(0, 1), LATER)
    book.conclude("op1", "me", again, results(0, 0) + results(1, 1, "conflicted"), {}, LATER)
    if over:
        book.mark("op1", OverrideState.FINISHED, "", LATER)
    told = results(0, 0, "conflicted") + results(1, 2) + results(3, 3, "failed") + results(4, 5)
    book.conclude("op1", ELSEWHERE, seq, told, {"backend": "queue"}, LATER)
    late = book.records()[-1]
    assert (late.kind, late.body["intent"], late.body["owner"]) == ("late", seq, ELSEWHERE)
    assert (late.body["counts"], late.body["instead"]) == ({"changed": 3}, {"conflicted": 1, "indeterminate": 1})
    assert list(book.item_outcomes(late.seq)) == [results(1, 2) + results(5, 5)]
    assert book.override("op1").counts == {"changed": 5}
    assert [(found.ranges, found.at) for found in book.intents("op1")][-1] == (((1, 2), (5, 5)), START)
    assert book.open_intents("op1") == []
    assert book.verify().what == ""
    book.conclude("op1", ELSEWHERE, seq, told, {"backend": "queue"}, LATER)
    assert book.records()[-1] == late
    begun(book, "op2", places=("/b",))
    assert book.verify().what == ""


def test_an_outcome_is_told_once(book: TrailBook) -> None:
    begun(book, owner=ELSEWHERE)
    seq = book.intend("op1", ELSEWHERE, chunk(0, 1), START)
    silent(book)
    book.take_over("op1", "me", LATER, YES)
    book.conclude("op1", "me", seq, results(0, 0, NOT_APPLIED) + results(1, 1), {}, LATER)
    assert book.records()[-1].kind == "settle"
    assert book.override("op1").counts == {"changed": 1}
    with pytest.raises(PlanStale):
        book.conclude("op1", "me", seq, results(0, 1), {}, LATER)
    with pytest.raises(PlanStale):
        book.conclude("op1", "me", 1, results(0, 1), {}, LATER)
    assert book.verify().ok


def test_unresolved_are_open_intents_of_the_dead(book: TrailBook) -> None:
    begun(book, owner=ELSEWHERE)
    seq = book.intend("op1", ELSEWHERE, {**chunk(0, 1), "ranges": [[0, 0], [3, 5]]}, START)
    assert book.unresolved() == []
    silent(book)
    (found,) = book.unresolved()
    assert (found.seq, found.op_id, found.backend, found.ranges) == (seq, "op1", "queue", ((0, 0), (3, 5)))


def test_an_intent_that_could_not_be_read_again_is_not_recorded(book: TrailBook) -> None:
    _, owner = begun(book)
    with pytest.raises(KeyError):
        book.intend("op1", owner, {"backend": "queue"}, START)
    assert kinds(book) == ["confirm"]
    assert book.intend("op1", owner, chunk(0, 1), START) == 2


# -- requests ------------------------------------------------------------------------------------


def test_a_pause_stays_until_continued_a_continue_is_told_once(book: TrailBook, url: str) -> None:
    _, owner = begun(book)
    with book_at(url) as another:
        another.ask("op", Request.PAUSE)
        assert [book.beat("op1", owner, START) for _ in range(2)] == [Request.PAUSE] * 2
        another.ask("op1", Request.CONTINUE)
        assert [book.beat("op1", owner, START) for _ in range(2)] == [Request.CONTINUE, None]


def test_a_stop_is_never_taken_back(book: TrailBook) -> None:
    _, owner = begun(book)
    for request in (Request.PAUSE, Request.STOP, Request.CONTINUE, Request.PAUSE):
        book.ask("op1", request)
    assert [book.beat("op1", owner, START) for _ in range(2)] == [Request.STOP] * 2
    book.mark("op1", OverrideState.STOPPED, "", START)
    with pytest.raises(Refused):
        book.ask("op1", Request.STOP)
    book.take_over("op1", owner, START, YES)
    assert book.beat("op1", owner, START) is None


def test_whom_nobody_carries_out_nobody_can_ask(book: TrailBook) -> None:
    begun(book, owner=ELSEWHERE)
    book.mark("op1", OverrideState.PAUSED, "", START, owner=ELSEWHERE)
    book.ask("op1", Request.PAUSE)
    silent(book)
    for request in Request:
        with pytest.raises(Refused) as refused:
            book.ask("op1", request)
        assert "retriage overrides resume op1" in refused.value.fix
    book.beat("op1", ELSEWHERE, LATER)
    book.ask("op1", Request.STOP)
    assert book.beat("op1", ELSEWHERE, LATER) is Request.STOP


# -- outcomes ------------------------------------------------------------------------------------


def test_outcomes_are_kept_in_ordinal_order_and_bound_to_their_record(book: TrailBook) -> None:
    _, owner = begun(book)
    seq = book.intend("op1", owner, chunk(0, 2), START)
    mixed = [ItemOutcome(2, "queue/c", OutcomeKind.FAILED, "unique\x1f\nindex"), *results(0, 1)]
    book.conclude("op1", owner, seq, mixed, {"backend": "queue"}, START)
    body = book.records()[-1].body
    assert (body["items_count"], body["counts"], body["intent"]) == (3, {"changed": 2, "failed": 1}, seq)
    assert [item for batch in book.outcomes("op1") for item in batch] == sorted(mixed)
    assert book.verify().ok


def test_many_outcomes_are_streamed(book: TrailBook) -> None:
    _, owner = begun(book, changes=1)
    seq = book.intend("op1", owner, chunk(0, 12_344), START)
    book.conclude("op1", owner, seq, results(0, 12_344), {}, START)
    batches = list(book.outcomes("op1"))
    assert len(batches) > 1
    assert [item for batch in batches for item in batch] == results(0, 12_344)
    assert book.verify().ok


def test_the_history_of_an_item(book: TrailBook) -> None:
    assert book.history_of("queue/000001") == []
    carried(book)
    assert book.history_of("queue/000001") == [(START, "requeue by ann (says Ann A.): changed; disk is back [op1]")]
    assert book.history_of("queue/none") == []


def test_records_forwards_and_backwards(book: TrailBook) -> None:
    for number in range(5):
        book.refuse({"n": number}, START)
    book.session({"version": "0.1.0"}, START)
    assert [record.seq for record in book.records(after=2, limit=2)] == [3, 4]
    assert [record.seq for record in book.newest(limit=2)] == [6, 5]
    assert [record.seq for record in book.newest(before=3)] == [2, 1]
    found = book.record(6)
    assert found is not None
    assert (found.kind, found.body, book.record(7)) == ("session", {"version": "0.1.0"}, None)
