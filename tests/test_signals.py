"""Signals ask for an end while somebody listens, and have their former handlers afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from console.signals import Signals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def received() -> Iterator[list[int]]:
    """What a handler of somebody else receives."""
    found: list[int] = []
    previous = {number: signal.signal(number, lambda number, _: found.append(number)) for number in NUMBERS}
    yield found
    for number, handler in previous.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", NUMBERS)
def test_a_signal_requests_an_end_while_it_is_listened_to(number: int, received: list[int]) -> None:
    stop = Signals()
    with stop.listen():
        assert not stop.requested
        os.kill(os.getpid(), number)
        assert stop.requested
    assert received == []


@pytest.mark.parametrize("number", NUMBERS)
def test_the_previous_handler_is_back_afterwards(number: int, received: list[int]) -> None:
    stop = Signals()
    with stop.listen():
        pass
    os.kill(os.getpid(), number)
    assert received == [number]
    assert not stop.requested


def test_the_previous_handlers_are_back_after_an_exception(received: list[int]) -> None:
    with pytest.raises(KeyError), Signals().listen():
        raise KeyError
    os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGTERM]


def test_a_second_interrupt_interrupts(received: list[int]) -> None:
    with Signals().listen():
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert received == []
