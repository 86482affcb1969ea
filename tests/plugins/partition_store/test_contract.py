"""The partition store keeps the same contract as any backend, on both databases and with its own table elsewhere."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from console.core.policy import PolicyOverride
from console.testing import (
    DISCARD_PROMISES,
    PROMISES,
    REQUEUE_PROMISES,
    BackendSuite,
    DiscardSuite,
    Harness,
    RequeueSuite,
)
from tests.depth import in_depth
from tests.plugins.partition_store import stores
from tests.plugins.postgres_analyses.server import database

STRICT = PolicyOverride(max_attempts=3, max_age=timedelta(days=30), unrecoverable=("invalid json", "invalid api key"))
VARIANTS: dict[str, dict[str, Any]] = {
    "no-control-table": {},
    "with-control-table": {"policy": STRICT, "control": True},
    "control-apart": {"policy": STRICT, "control": True, "apart": "postgres"},
    "postgres-no-control-table": {"url": "postgres"},
    "postgres-with-control-table": {"url": "postgres", "policy": STRICT, "control": True},
    "postgres-control-apart": {"url": "postgres", "policy": STRICT, "control": True, "apart": "sqlite"},
    "read-only": {"policy": PolicyOverride(retryable=False), "read_only": True},
    "postgres-read-only": {"url": "postgres", "policy": PolicyOverride(retryable=False), "read_only": True},
}


class Makes:
    """Empty stores of one variant, as many as are asked for."""

    def __init__(self, variant: str, base: Path, stack: ExitStack) -> None:
        self._given = dict(VARIANTS[variant])
        self._base = base
        self._stack = stack
        self._made = 0

    def __call__(self) -> Harness:
        self._made += 1
        base = self._base / str(self._made)
        given = dict(self._given)
        apart = given.pop("apart", "")
        if given.get("url"):
            given["url"] = self._stack.enter_context(database())
        if apart == "postgres":
            given["control_url"] = self._stack.enter_context(database())
        elif apart:
            base.mkdir(parents=True)
            stores.sqlite3.connect(base / "control.db").execute("CREATE TABLE other (x)").connection.close()
            given["control_url"] = f"sqlite:///{base}/control.db"
        return stores.harness(base / "etl", **given)


QUICK = ["no-control-table", "control-apart", "postgres-with-control-table", "postgres-read-only"]
"""Each database, with, without and apart from a control table, and read-only. The other pairs are a campaign."""


@pytest.fixture(scope="module", params=in_depth(VARIANTS, QUICK))
def reading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[BackendSuite]:
    folder = tmp_path_factory.mktemp("store")
    with ExitStack() as stack, BackendSuite(Makes(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth([name for name in VARIANTS if "read-only" not in name], QUICK[:3]))
def requeue(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[RequeueSuite]:
    folder = tmp_path_factory.mktemp("store")
    with ExitStack() as stack, RequeueSuite(Makes(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.fixture(scope="module", params=in_depth(["no-control-table", "postgres-with-control-table"], quick=["no-control-table"]))
def discard(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, thorough: bool) -> Iterator[DiscardSuite]:
    folder = tmp_path_factory.mktemp("store")
    with ExitStack() as stack, DiscardSuite(Makes(request.param, folder, stack), thorough=thorough) as suite:
        yield suite


@pytest.mark.parametrize("promise", PROMISES)
def test_keeps_its_promise(reading: BackendSuite, promise: str) -> None:
    reading.check(promise)


@pytest.mark.parametrize("promise", REQUEUE_PROMISES)
def test_requeues_as_promised(requeue: RequeueSuite, promise: str) -> None:
    requeue.check(promise)


@pytest.mark.parametrize("promise", DISCARD_PROMISES)
def test_discards_as_promised(discard: DiscardSuite, promise: str) -> None:
    discard.check(promise)
