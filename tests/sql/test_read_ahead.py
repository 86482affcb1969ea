"""Reading ahead."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event, active_count

import pytest

from console.sql.database import read_ahead


def test_the_next_batch_is_read_while_this_one_is_used() -> None:
    third = Event()

    def batches() -> Iterator[int]:
        yield 1
        yield 2
        third.set()
        yield 3

    found = read_ahead(batches())
    assert [next(found), next(found)] == [1, 2]
    assert third.wait(10)
    assert list(found) == [3]


@pytest.mark.parametrize("count", range(5))
def test_all_of_them_in_order(count: int) -> None:
    assert list(read_ahead(iter([[n] for n in range(count)]))) == [[n] for n in range(count)]


def test_nothing_is_read_before_somebody_wants_more_than_the_first() -> None:
    def batches() -> Iterator[int]:
        yield 1
        pytest.fail("read too far")

    assert next(read_ahead(batches())) == 1


def test_what_fails_ahead_is_raised_in_its_turn() -> None:
    def batches() -> Iterator[int]:
        yield 1
        yield 2
        raise LookupError

    found = read_ahead(batches())
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(LookupError):
        next(found)


def test_who_stops_early_leaves_no_thread_behind() -> None:
    threads = active_count()
    found = read_ahead(iter([1, 2, 3, 4]))
    assert [next(found), next(found)] == [1, 2]
    del found
    assert active_count() == threads
