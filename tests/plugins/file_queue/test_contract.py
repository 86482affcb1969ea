"""A folder of files keeps the same contract as any database."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, REQUEUE_PROMISES, Harness, exercise_backend, exercise_requeue
from tests.plugins.file_queue import folders

STRICT = PolicyOverride(unrecoverable=("invalid json", "invalid api key", "É"), max_age=timedelta(days=300))
ONE_SHOT = PolicyOverride(retryable=False, stuck_after=timedelta(minutes=5))

VARIANTS: dict[str, Callable[[Path], Harness]] = {
    "own-policy": folders.harness,
    "strict": lambda base: folders.harness(base, STRICT),
    "read-only": lambda base: folders.harness(base, ONE_SHOT, read_only=True),
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_keeps_its_promise(variant: str, promise: str, tmp_path: Path) -> None:
    numbers = iter(range(100))
    exercise_backend(lambda: VARIANTS[variant](tmp_path / str(next(numbers))), promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "read-only"])
def test_hands_items_back_as_promised(variant: str, promise: str, tmp_path: Path) -> None:
    numbers = iter(range(100))
    exercise_requeue(lambda: VARIANTS[variant](tmp_path / str(next(numbers))), promise)
