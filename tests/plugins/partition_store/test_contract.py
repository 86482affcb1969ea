"""The partition store keeps the same contract as any backend."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from console.core.policy import PolicyOverride
from console.testing import PROMISES, Harness, exercise_backend
from tests.plugins.partition_store import stores

STRICT = PolicyOverride(max_attempts=3, max_age=timedelta(days=30), unrecoverable=("invalid json", "invalid api key"))
VARIANTS: dict[str, Callable[[Path], Harness]] = {
    "no-control-table": stores.harness,
    "with-control-table": lambda base: stores.harness(base, STRICT, control=True),
    "read-only": lambda base: stores.harness(base, PolicyOverride(retryable=False), read_only=True),
}


@pytest.mark.parametrize("promise", PROMISES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_keeps_its_promise(variant: str, promise: str, tmp_path: Path) -> None:
    numbers = iter(range(100))
    exercise_backend(lambda: VARIANTS[variant](tmp_path / str(next(numbers))), promise)
