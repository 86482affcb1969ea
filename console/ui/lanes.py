"""How the console calls its backends: in threads of their own, one set per backend, with a deadline on our side.

The threads are daemons. A thread of asyncio's own pool is waited for at exit, and a backend that hangs would
then keep the console from quitting. Nothing is written through a lane, so nothing is lost with one.

They are kept, and the one that rested last works next: a console reads several times a second, for days, and as many
threads would be begun and ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from console.core.faults import BackendFault, DeadlineExceeded, Fault

if TYPE_CHECKING:
    from console.core.backend import Backend

T = TypeVar("T")
Work = Callable[[], None]

_AT_ONCE = 4

_resting: list[SimpleQueue[Work]] = []
"""Where each thread that has nothing to do waits for work."""


def in_thread(work: Work) -> None:
    """Do this in a thread of our own, now; it must not raise."""
    try:
        inbox = _resting.pop()
    except IndexError:
        inbox = SimpleQueue()
        Thread(target=_serve, args=(inbox,), name="off-loop", daemon=True).start()
    inbox.put(work)


def _serve(inbox: SimpleQueue[Work]) -> None:
    while True:
        inbox.get()()
        _resting.append(inbox)


class Raised:
    """A Stop that is raised by hand, when what was asked for is not wanted any more."""

    requested = False


@dataclass(slots=True, eq=False)
class _Call:
    """One question. Told apart by identity: to compare two would let another thread change the list meanwhile."""

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    deadline: float
    begun: float | None = None


class Lane:
    """The way to one backend. At most four calls run at a time; when all of them hang, new ones fail at once."""

    def __init__(self, backend: Backend, deadline: float) -> None:
        self.backend = backend
        self.name = backend.name
        self.deadline = deadline
        self._calls: deque[_Call] = deque()
        self._running: list[_Call] = []
        self._lock = Lock()
        self._threads = 0

    @property
    def hangs(self) -> bool:
        """A call has been running for longer than the backend itself should have allowed."""
        now = monotonic()
        return any(call.begun is not None and now - call.begun > call.deadline for call in tuple(self._running))

    async def ask(self, work: Callable[[Backend], T], deadline: float | None = None) -> T:
        """What the backend answers; a Fault when it fails, a DeadlineExceeded when it takes too long."""
        if self.hangs:
            raise DeadlineExceeded("an earlier call still hangs", where=self.name)
        loop = asyncio.get_running_loop()
        call = _Call(lambda: work(self.backend), loop, loop.create_future(), deadline or self.deadline)
        self._enqueue(call)
        try:
            async with asyncio.timeout(call.deadline):  # wait_for would lose a cancel that comes with the answer
                answer: T = await call.answer
        except TimeoutError:
            raise DeadlineExceeded(f"waited {call.deadline:g} s", where=self.name) from None
        return answer

    def _enqueue(self, call: _Call) -> None:
        with self._lock:
            self._calls.append(call)
            if self._threads == _AT_ONCE:
                return
            self._threads += 1
        in_thread(self._work)

    def _next(self) -> _Call | None:
        with self._lock:
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None

    def _work(self) -> None:
        """Until there is nothing more to ask."""
        while (call := self._next()) is not None:
            if call.answer.cancelled():
                continue
            call.begun = monotonic()
            self._running.append(call)
            try:
                settle = self._run(call)
            finally:
                self._running.remove(call)
            with suppress(RuntimeError):  # the loop is closed: the console has quit
                call.loop.call_soon_threadsafe(settle)

    def _run(self, call: _Call) -> Callable[[], None]:
        try:
            value = call.work()
        except Fault as fault:
            return _failing(call.answer, fault)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; its card says so
            return _failing(call.answer, BackendFault(f"{type(error).__name__}: {error}"[:300], where=self.name))
        return _giving(call.answer, value)


def _giving(answer: asyncio.Future[Any], value: Any) -> Callable[[], None]:
    return lambda: None if answer.done() else answer.set_result(value)


def _failing(answer: asyncio.Future[Any], fault: Exception) -> Callable[[], None]:
    return lambda: None if answer.done() else answer.set_exception(fault)


class Lanes:
    """All the lanes, in config order."""

    def __init__(self, backends: Sequence[Backend], deadline: float) -> None:
        self._lanes: Mapping[str, Lane] = {backend.name: Lane(backend, deadline) for backend in backends}

    def __iter__(self) -> Iterator[Lane]:
        return iter(self._lanes.values())

    def __len__(self) -> int:
        return len(self._lanes)

    def __contains__(self, name: str) -> bool:
        return name in self._lanes

    def __getitem__(self, name: str) -> Lane:
        return self._lanes[name]


async def off_loop(work: Callable[[], T]) -> T:
    """Work of our own that takes longer than a frame, in a thread that does not keep the console from quitting."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - handed to whoever waits
            settle = _failing(answer, error)
        else:
            settle = _giving(answer, value)
        with suppress(RuntimeError):  # the loop is closed: the console has quit
            loop.call_soon_threadsafe(settle)

    in_thread(run)
    return await answer
