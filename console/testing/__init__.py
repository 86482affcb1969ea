"""For plugin authors: the contract suites, a clock for tests, and a complete queue in memory to start from.

    def make() -> Harness:
        backend = MyBackend.open(...)
        return Harness(backend, put=lambda samples: my_rows(samples), clock=FrozenClock(), statuses=("ready", …))

    @pytest.mark.parametrize("promise", PROMISES)
    def test_contract(promise): exercise_backend(make, promise)

For a backend that can requeue there is a second suite. Its harness needs a `store`:

    @pytest.mark.parametrize("promise", REQUEUE_PROMISES)
    def test_requeue(promise): exercise_requeue(make, promise)

For one that can discard, there is a third: `exercise_discard` with `DISCARD_PROMISES`.

The suites use rows with every native status, odd counters, impossible times and hostile text. Without the name of a
promise they check all of them. docs/plugins.md is the tutorial.
"""

from __future__ import annotations

from console.testing.clock import NOON, FrozenClock, StopFlag
from console.testing.discard import DISCARD_PROMISES, DiscardSuite, exercise_discard
from console.testing.harness import ALL, ContractBroken, Harness, Sample, Store, World, samples
from console.testing.memory_queue import MemoryQueue, MemoryReader
from console.testing.reading import PROMISES, BackendSuite, exercise_backend
from console.testing.requeue import REQUEUE_PROMISES, RequeueSuite, exercise_requeue

__all__ = [
    "ALL",
    "DISCARD_PROMISES",
    "NOON",
    "PROMISES",
    "REQUEUE_PROMISES",
    "BackendSuite",
    "ContractBroken",
    "DiscardSuite",
    "FrozenClock",
    "Harness",
    "MemoryQueue",
    "MemoryReader",
    "RequeueSuite",
    "Sample",
    "StopFlag",
    "Store",
    "World",
    "exercise_backend",
    "exercise_discard",
    "exercise_requeue",
    "samples",
]
