"""Connections that are taken and given back."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from console.sql.idle import Few, Idle


def opened() -> sqlite3.Connection:
    return sqlite3.connect(":memory:", check_same_thread=False)


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


def test_the_last_given_back_is_taken_first() -> None:
    idle = Idle(opened)
    with idle.taken() as first, idle.taken() as second:
        assert first is not second
    with idle.taken() as again:
        assert again is first
    idle.close()


def test_a_few_are_kept_and_the_rest_closed() -> None:
    idle = Idle(opened)
    with ExitStack() as stack:
        connections = [stack.enter_context(idle.taken()) for _ in range(10)]
    assert sum(map(is_closed, connections)) == 6
    idle.close()
    assert all(map(is_closed, connections))


def test_what_is_at_work_while_others_are_closed_is_not_used_again() -> None:
    idle = Idle(opened)
    with idle.taken() as at_work:
        idle.close()
        assert not is_closed(at_work)
    assert is_closed(at_work)
    with idle.taken() as another:
        assert another is not at_work
    idle.close()


def test_it_is_given_back_whatever_happens() -> None:
    idle = Idle(opened)
    with pytest.raises(LookupError), idle.taken() as used:
        raise LookupError
    with idle.taken() as again:
        assert again is used
    idle.close()


def test_threads_never_share_one() -> None:
    idle = Idle(opened)
    at_work: set[int] = set()

    def work(turn: int) -> None:
        with idle.taken() as connection:
            assert id(connection) not in at_work
            at_work.add(id(connection))
            assert connection.execute("SELECT ?", (turn,)).fetchone() == (turn,)
            at_work.discard(id(connection))
            if turn % 50 == 0:
                idle.close()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(2_000)))
    idle.close()


class Unclosable:
    """A connection whose end is not heard any more."""

    def close(self) -> None:
        raise OSError("the wire is gone")


def test_no_place_is_lost_to_a_connection_that_does_not_open() -> None:
    """The third would wait for ever for one of two that never were."""
    tries = iter([KeyboardInterrupt(), OSError(), MemoryError(), None])

    def open_at_last() -> sqlite3.Connection:
        if (problem := next(tries)) is not None:
            raise problem
        return opened()

    few = Few(open_at_last, 2, 2)
    for problem in (KeyboardInterrupt, OSError, MemoryError):
        with pytest.raises(problem):
            few.take(0.1)
    place, connection = few.take(0.1)
    few.give_back(place, connection, sound=True)
    assert few.take(0.1)[1] is connection
    connection.close()


def test_no_place_is_lost_to_a_connection_that_does_not_close() -> None:
    few = Few(Unclosable, 1, 1)
    for _ in range(3):
        place, connection = few.take(0.1)
        with pytest.raises(OSError, match="the wire is gone"):
            few.give_back(place, connection, sound=False)


def test_no_more_than_so_many_are_at_work() -> None:
    few = Few(opened, 1, 1)
    place, connection = few.take(0.1)
    with pytest.raises(TimeoutError):
        few.take(0.1)
    few.give_back(place, connection, sound=True)
    few.close()
    assert is_closed(connection)
