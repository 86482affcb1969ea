from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.redis_store import Server, running_server


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with running_server() as found:
        yield found


@pytest.fixture
def url(server: Server) -> str:
    return server.database()
