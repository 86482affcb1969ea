"""Options, profiles and checks shared by all tests."""

from __future__ import annotations

import gc
import os
import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import leftovers
from tests.promises import promises, summary

__all__ = ["promises"]

for profile, examples in (("quick", 20), ("all", 60)):
    settings.register_profile(
        profile, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow], print_blob=True
    )


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all", action="store_true", help="also run the campaigns, and every test with its full counts")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("all" if config.getoption("--all") else "quick")
    if not hasattr(config, "workerinput"):
        os.environ[leftovers.RUN] = secrets.token_hex(8)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the campaigns out, unless all tests are wanted or a test is named on the command line."""
    if config.getoption("--all") or any("::" in argument for argument in config.args):
        return
    left_out = [item for item in items if item.get_closest_marker("campaign")]
    items[:] = [item for item in items if not item.get_closest_marker("campaign")]
    config.hook.pytest_deselected(items=left_out)


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """True when every test runs with its full counts."""
    return bool(pytestconfig.getoption("--all"))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    summary(terminalreporter)


# --- no process is left behind ------------------------------------------------------------------------------

_outcome = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "call":
        item.stash[_outcome] = report.passed
    return report


@pytest.fixture(autouse=True)
def _collects_garbage() -> Iterator[None]:
    """A console that a test opens freezes what it has loaded. In the process of the tests that would keep garbage, and
    its open files, for ever."""
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _ends_its_processes(request: pytest.FixtureRequest) -> Iterator[None]:
    """After a test none of its processes runs: a passed test fails if one does, a failed test has them killed."""
    before = leftovers.descendants()
    yield
    new = leftovers.descendants() - before
    if new:
        passed = request.node.stash.get(_outcome, False)
        names = leftovers.end(new, patience=30 if passed else 0)
        if names and passed:
            pytest.fail(f"left running: {names}")


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """At the very end no process of this run is left, not even one whose parent has ended."""
    result = yield
    if not hasattr(session.config, "workerinput"):
        names = leftovers.end(leftovers.marked(os.environ[leftovers.RUN]), patience=60)
        if names:
            session.config.get_terminal_writer().line(f"\nprocesses left running by tests, now killed: {names}", red=True)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
    return result
