"""Causes on the trail: what people decide is recorded, chained, shared, and names no error text."""

from __future__ import annotations

from datetime import timedelta

import pytest

from console.core.cause_count import Cause
from console.core.cause_life import CauseState, CauseStates, Snooze
from console.core.confirm import Origin, Who
from console.core.faults import ReadOnlyRefused, Refused, UsageFault
from console.trail.store import TrailStore
from tests.trail.world import START, FrozenClock, trail_at

SECRET = "ERR_AUTH: key sk_live_canary is wrong"
CAUSE = Cause("a1b2c3d4", SECRET, 12, 3, START - timedelta(days=3), START, (("jobs", 10), ("mail", 2)))


def states(trail: TrailStore, clock: FrozenClock, name: str = "ann", *, read_only: bool = False) -> CauseStates:
    origin = Origin("host", "pts/1", "", 1, "0.1.0")
    return CauseStates(trail, clock, Who(1000, name), origin, read_only=read_only)


def test_every_change_is_a_record_that_others_see(trail: TrailStore, clock: FrozenClock) -> None:
    mine, theirs = states(trail, clock), states(trail, clock, "bo")
    mine.acknowledge(CAUSE, "provider is down")
    mine.assign(CAUSE, "bo")
    theirs.note(CAUSE, "ticket OPS-12")
    mine.read()
    life = mine.life(CAUSE)
    assert (life.state, life.by, life.owner) == (CauseState.ACKNOWLEDGED, "ann", "bo")
    assert [(note.by, note.text) for note in life.notes] == [("ann", "provider is down"), ("bo", "ticket OPS-12")]
    theirs.snooze(CAUSE, Snooze(START + timedelta(hours=2)))
    mine.read()
    assert mine.life(CAUSE).state is CauseState.SNOOZED
    clock.moment += timedelta(hours=3)
    assert mine.life(CAUSE).state is CauseState.ONGOING
    mine.resolve(CAUSE)
    assert mine.life(CAUSE).state is CauseState.RESOLVED
    mine.reopen(CAUSE, "too early")
    assert mine.life(CAUSE).state is CauseState.ONGOING
    records = trail.records()
    assert {record.kind for record in records} == {"cause"}
    assert all(SECRET not in str(record.body) for record in records)
    assert records[0].body["by"] == "ann"
    assert trail.verified().ok
    assert mine.named == {"a1b2c3d4"}


def test_states_as_they_were(trail: TrailStore, clock: FrozenClock) -> None:
    mine = states(trail, clock)
    mine.acknowledge(CAUSE)
    clock.moment += timedelta(hours=1)
    mine.resolve(CAUSE)
    half_way = START + timedelta(minutes=30)
    assert mine.life(CAUSE, at=half_way).state is CauseState.ACKNOWLEDGED
    assert mine.life(CAUSE, at=START - timedelta(minutes=1)).state is CauseState.ONGOING


def test_read_only_shows_and_changes_nothing(url: str, clock: FrozenClock) -> None:
    with trail_at(url, clock) as trail:
        states(trail, clock).acknowledge(CAUSE)
    with trail_at(url, clock, read_only=True) as trail:
        audit = states(trail, clock, read_only=True)
        audit.read()
        assert audit.life(CAUSE).state is CauseState.ACKNOWLEDGED
        with pytest.raises(ReadOnlyRefused):
            audit.resolve(CAUSE)
        assert len(trail.records()) == 1


def test_what_cannot_be_recorded(sqlite_trail: TrailStore, clock: FrozenClock) -> None:
    mine = states(sqlite_trail, clock)
    nameless = Cause(None, "", 3, 0, None, None, (("jobs", 3),))
    with pytest.raises(Refused, match="no cause"):
        mine.acknowledge(nameless)
    with pytest.raises(UsageFault, match="has already passed"):
        mine.snooze(CAUSE, Snooze(START - timedelta(hours=1)))
    with pytest.raises(UsageFault, match="end the snooze"):
        mine.snooze(CAUSE, Snooze())
    with pytest.raises(UsageFault, match="empty"):
        mine.note(CAUSE, " \u200b")
    with pytest.raises(UsageFault, match="2000"):
        mine.note(CAUSE, "x" * 2001)
    assert not sqlite_trail.records()
