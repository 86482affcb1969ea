"""For plugin authors: a clock to hold, a backend in memory, and the suites that hold a backend to the contract.

    def make() -> Harness:
        backend = MyBackend.open(...)
        return Harness(backend, put=lambda samples: my_rows(samples), clock=FrozenClock(), statuses=("ready", …))

    @pytest.mark.parametrize("promise", PROMISES)
    def test_contract(promise): exercise_backend(make, promise)

A backend that hands items back is also held to what it promises about that; its harness has a `store`:

    @pytest.mark.parametrize("promise", REQUEUE_PROMISES)
    def test_requeue(promise): exercise_requeue(make, promise)

Everything is checked through the contract's own methods, on rows that cover every native status, odd
counters, times that are none, and hostile text. Without a promise named, all of them are checked.
"""

from __future__ import annotations

from console.testing.clock import NOON, Flag, FrozenClock
from console.testing.harness import ALL, ContractBroken, Harness, Sample, Store, World, samples
from console.testing.memory import MemoryBackend
from console.testing.reading import PROMISES, exercise_backend
from console.testing.requeue import REQUEUE_PROMISES, exercise_requeue

__all__ = [
    "ALL", "NOON", "PROMISES", "REQUEUE_PROMISES", "ContractBroken", "Flag", "FrozenClock", "Harness",
    "MemoryBackend", "Sample", "Store", "World", "exercise_backend", "exercise_requeue", "samples",
]
