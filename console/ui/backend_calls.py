"""Calls backends in threads, with a deadline on the console's side and within the reading budget.

The threads are daemons: a thread of asyncio's own pool is waited for at exit, so a backend that hangs would keep
the console from quitting. Only reads go through here, so nothing is lost with a thread. Idle threads are kept and
reused, because a console reads several times a second, for days.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from console.core.budget import HOLD_LIMIT, REFRESH, SHARE, Meter, ReadingBudget, charge, metered
from console.core.faults import BackendFault, DeadlineExceeded, Fault, ReadTooLong

if TYPE_CHECKING:
    from console.core.backend import Backend

T = TypeVar("T")
Work = Callable[[], None]

_MAX_CALLS = 4
"""Calls that run at the same time on one backend."""

_CONNECTIONS = 2
"""How many connections for reading a backend has. A further call waits for one of them."""
_KEPT_ANSWERS = 32

_idle: list[SimpleQueue[Work]] = []
"""The inboxes of the threads that wait for work."""


def in_thread(work: Work) -> None:
    """Run `work`, which must not raise, in a daemon thread, now."""
    try:
        inbox = _idle.pop()
    except IndexError:
        inbox = SimpleQueue()
        Thread(target=_serve, args=(inbox,), name="off-loop", daemon=True).start()
    inbox.put(work)


def _serve(inbox: SimpleQueue[Work]) -> None:
    while True:
        inbox.get()()
        _idle.append(inbox)


class CancelFlag:
    """A Stop for one piece of work. Set `requested` when its result is no longer wanted."""

    requested = False


@dataclass(slots=True, eq=False)
class _Call:
    """One call. Compared by identity (`eq=False`), so that removing it from a list runs no Python code."""

    work: Callable[[], Any]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]
    deadline: float
    question: Hashable = None
    begun: float | None = None
    hold_limit: float | None = None


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """The answer to a question that is asked again and again, and when it was given (of the steady clock)."""

    value: T
    at: float


class BackendCaller:
    """Calls one backend. At most four calls run at a time; while one hangs, new ones fail at once."""

    def __init__(self, backend: Backend, deadline: float, budget: ReadingBudget | None = None) -> None:
        self.backend = backend
        self.name = backend.name
        self.deadline = deadline
        self.budget = budget or ReadingBudget()
        self._answers: OrderedDict[Hashable, Answer[Any] | Fault] = OrderedDict()
        self._asking: dict[Hashable, asyncio.Task[Any]] = {}
        self._asked: set[Hashable] = set()
        """The questions of `_asking` that a person has asked."""
        self._calls: deque[_Call] = deque()
        self._running: list[_Call] = []
        self._lock = Lock()
        self._threads = 0

    @property
    def hangs(self) -> bool:
        """Whether a call has been running for longer than its deadline."""
        now = monotonic()
        return any(call.begun is not None and now - call.begun > call.deadline for call in tuple(self._running))

    @property
    def busy(self) -> bool:
        """Whether as many calls are running as there are connections, none of them for too long."""
        return len(self._running) >= _CONNECTIONS and not self.hangs

    async def call(
        self, work: Callable[[Backend], T], deadline: float | None = None, question: Hashable = None, *,
        asked: bool = True,
    ) -> T:
        """Return what `work` returns. Raises a Fault when it fails, DeadlineExceeded when it takes too long.

        The cost of a call with a `question` decides when that question may be asked again without a person. It is
        noted when the work ends, even if nobody waits for the answer any more. Raises ReadTooLong if nobody has `asked`
        and the writers of the watched system would have to wait.
        """
        if self.hangs:
            raise DeadlineExceeded("an earlier call has not returned yet", where=self.name)
        loop = asyncio.get_running_loop()
        call = _Call(lambda: work(self.backend), loop, loop.create_future(), deadline or self.deadline, question)
        call.hold_limit = None if asked else HOLD_LIMIT
        self._enqueue(call)
        try:
            async with asyncio.timeout(call.deadline):  # wait_for would lose a cancel that comes with the answer
                answer: T = await call.answer
        except TimeoutError:
            self._note(call, Meter(call.deadline, 0))  # at least: the work may go on
            raise DeadlineExceeded(f"no answer for {call.deadline:g} s", where=self.name) from None
        return answer

    def _note(self, call: _Call, cost: Meter) -> None:
        if call.question is not None:
            self.budget.note(call.question, cost, monotonic())

    async def beat(self, deadline: float) -> None:
        """Ask the backend for its time. That costs it nothing, so it shows how long the way to it is."""

        def ask(backend: Backend) -> float:
            with metered() as meter:
                backend.now()
            return meter.seconds

        self.budget.answered_in(await self.call(ask, deadline))

    async def read(
        self, question: Hashable, work: Callable[[Backend], T], *, asked: bool = False, deadline: float | None = None,
        every: float = 0.0,
    ) -> Answer[T]:
        """The answer to a question, new if a person has `asked` or if the budget allows it, else the last one.

        Everybody who has the same question at the same time gets the same answer. `every`: seconds after which it is
        usually asked again, if that is longer than the refresh.
        """
        while asked and question in self._asking and question not in self._asked:
            await asyncio.wait([self._asking[question]])  # nobody has asked that one: it may read less
        known = self._answers.get(question)
        if question not in self._asking:
            must_wait = self.budget.wait(question, monotonic(), every) > 0
            if known is not None and not asked and must_wait:
                if isinstance(known, Fault):
                    raise known
                return known
            if asked:
                self._asked.add(question)
            task = self._asking[question] = asyncio.create_task(self._ask(question, work, deadline, asked))
            task.add_done_callback(lambda done: self._answered(question, done))
        try:
            answer: Answer[T] = await asyncio.shield(self._asking[question])
        except ReadTooLong:
            if isinstance(known, Answer):
                return known
            raise
        return answer

    async def _ask(
        self, question: Hashable, work: Callable[[Backend], T], deadline: float | None, asked: bool
    ) -> Answer[T]:
        value = await self.call(work, deadline, question, asked=asked)
        return Answer(value, monotonic())

    def _answered(self, question: Hashable, task: asyncio.Task[Any]) -> None:
        del self._asking[question]
        self._asked.discard(question)
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, ReadTooLong) and isinstance(self._answers.get(question), Answer):
            return  # the last answer is still the best one
        if error is None or isinstance(error, Fault):
            self._answers[question] = task.result() if error is None else error
            self._answers.move_to_end(question)
        while len(self._answers) > _KEPT_ANSWERS:
            self._answers.popitem(last=False)

    def _enqueue(self, call: _Call) -> None:
        with self._lock:
            self._calls.append(call)
            if self._threads == _MAX_CALLS:
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
        """In a thread: run calls until there are none left."""
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
        with metered(call.hold_limit) as cost:
            settle = self._settle(call)
        self._note(call, cost)
        return settle

    def _settle(self, call: _Call) -> Callable[[], None]:
        try:
            value = call.work()
        except DeadlineExceeded as fault:
            charge(monotonic() - (call.begun or monotonic()))  # a statement that was given up reports nothing
            if isinstance(fault, ReadTooLong):
                charge(self.budget.cost(call.question))  # else it would be tried again all the time
            return _failing(call.answer, fault)
        except Fault as fault:
            charge(0.0)  # it was refused, or waited for a lock: that costs the watched system nothing
            return _failing(call.answer, fault)
        except Exception as error:  # noqa: BLE001 - a plugin may raise anything; its card shows it
            return _failing(call.answer, BackendFault(f"{type(error).__name__}: {error}"[:300], where=self.name))
        return lambda: self._keep_late(call, value) if call.answer.done() else call.answer.set_result(value)

    def _keep_late(self, call: _Call, value: Any) -> None:
        """An answer that came after its deadline is better than none. The question need not be asked again for it."""
        if isinstance(self._answers.get(call.question), DeadlineExceeded):
            self._answers[call.question] = Answer(value, monotonic())


def _giving(answer: asyncio.Future[Any], value: Any) -> Callable[[], None]:
    return lambda: None if answer.done() else answer.set_result(value)


def _failing(answer: asyncio.Future[Any], fault: Exception) -> Callable[[], None]:
    return lambda: None if answer.done() else answer.set_exception(fault)


class BackendCallers:
    """One caller per backend, in config order."""

    def __init__(
        self, backends: Sequence[Backend], deadline: float, share: float = SHARE, refresh: float = REFRESH,
        budgets: Mapping[str, ReadingBudget] | None = None,
    ) -> None:
        """`budgets`: those that other readers of this process use too."""
        shared = budgets or {}
        self._callers: Mapping[str, BackendCaller] = {
            backend.name: BackendCaller(backend, deadline, shared.get(backend.name) or ReadingBudget(share, refresh))
            for backend in backends
        }

    def __iter__(self) -> Iterator[BackendCaller]:
        return iter(self._callers.values())

    def __len__(self) -> int:
        return len(self._callers)

    def __contains__(self, name: str) -> bool:
        return name in self._callers

    def __getitem__(self, name: str) -> BackendCaller:
        return self._callers[name]


async def off_loop(work: Callable[[], T]) -> T:
    """Run slow work of our own in a daemon thread, and return its result."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            value = work()
        except Exception as error:  # noqa: BLE001 - raised again where it is awaited
            settle = _failing(answer, error)
        else:
            settle = _giving(answer, value)
        with suppress(RuntimeError):  # the loop is closed: the console has quit
            loop.call_soon_threadsafe(settle)

    in_thread(run)
    return await answer
