from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.plugins.postgres_analyses.operating import Operator, operating
from tests.plugins.sql_table.systems import SYSTEMS
from tests.plugins.sql_table.world import Queue

At = Callable[..., tuple[Queue, Operator]]


@pytest.fixture
def at(tmp_path: Path) -> Iterator[At]:
    """The tables of a preset, and an operator at work on them with a real trail."""
    with ExitStack() as stack:
        def begin(preset: str, **options: Any) -> tuple[Queue, Operator]:
            queue = stack.enter_context(SYSTEMS[preset].queue())
            return queue, stack.enter_context(operating(queue.open(**options), tmp_path))

        yield begin
