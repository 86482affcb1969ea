"""Reading ahead: the next batch is looked for while whoever asked is busy with the one before, or waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")


def ahead(batches: Iterator[T]) -> Iterator[T]:
    """The same batches. Nothing is read ahead before a second one is asked for: most selections end in the first."""
    first = next(batches, None)
    if first is None:
        return
    yield first
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1, "reading-ahead") as reading:
        coming = reading.submit(next, batches, None)
        while (batch := coming.result()) is not None:
            coming = reading.submit(next, batches, None)
            yield batch
