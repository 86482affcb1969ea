"""Reading the members of a sorted set by their scores."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

import pytest
import redis

from console.keyed.redis_server import RedisServer
from console.keyed.sections import Member, Section, Shape, members_at

SECTION = Section(0, "", "set", "set", Shape.SORTED_SET, frozenset())
STORED = [Member(b"m%03d" % n, score) for n, score in enumerate([*(n + 0.25 for n in range(50)), *[60.0] * 30, *range(70, 90)])]


@pytest.fixture
def server(url: str) -> Iterator[RedisServer]:
    with redis.Redis.from_url(url, protocol=2) as client:
        client.zadd("set", dict(STORED))
    found = RedisServer(url, read_only=True, deadline=timedelta(seconds=20))
    yield found
    found.close()


@pytest.mark.parametrize("scores", [
    set(), {0.25}, {7.25, 8.25, 9.25}, {0.25, 30.25, 89.0}, {60.0}, {49.25, 60.0}, {60.0, 70.0}, {1.0, 1e9}, {0.25, 1.25, 60.0},
    {score for _, score in STORED}, {score for _, score in STORED[::7]}, {float("inf")},
])
def test_every_member_with_one_of_the_scores_is_found(server: RedisServer, scores: set[float]) -> None:
    assert sorted(members_at(server, SECTION, scores)) == [member for member in STORED if member.score in scores]
