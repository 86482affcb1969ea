"""Sections: the sorted sets and lists of a queue, walked through from any entry in either direction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from console.core.item import Condition
from console.core.query import Cursor
from console.keyed.redis_server import Command, RedisServer

_FIRST_BATCH, _LARGEST_BATCH = 128, 1_000
_SEARCHED = 5_000
"""How many entries of a long list are looked at, from either end."""


class Shape(StrEnum):
    """What a section is in Redis."""

    SORTED_SET = "zset"
    LIST = "list"
    SET = "set"
    """Its members are read by the plugin."""


@dataclass(frozen=True, slots=True)
class Section:
    """One sorted set or list, and what its members can mean."""

    rank: int
    """Its place in the default order of the backend."""
    queue: str
    name: str
    """Its name within the queue: "failed"."""
    key: str
    shape: Shape
    conditions: frozenset[Condition]
    falling: bool = True
    """The highest score, or the end of the list, comes first."""
    unit: float = 1.0
    """What a second is in the score of a due time."""
    due: bool = False
    """The score says when a member runs. Members of other sections have no such time."""

    @property
    def order(self) -> tuple[int, str]:
        return self.rank, self.queue

    @property
    def size(self) -> Command:
        """The command that counts the members."""
        match self.shape:
            case Shape.LIST:
                return ("LLEN", self.key)
            case Shape.SORTED_SET:
                return ("ZCARD", self.key)
            case Shape.SET:
                return ("SCARD", self.key)

    def presence(self, member: bytes) -> list[Command]:
        """Commands whose reply is None if the member is not there. Only the ends of a long list are searched."""
        if self.shape is Shape.LIST:
            return [("LPOS", self.key, member, "RANK", rank, "MAXLEN", _SEARCHED) for rank in (1, -1)]
        return [("ZSCORE", self.key, member)]


class Member(NamedTuple):
    """A member of a section, and its score in a sorted set or its position in a list."""

    name: bytes
    score: float

    def cursor(self, section: Section) -> Cursor:
        return Cursor(self.score, False, (*section.order, self.name))


def members(server: RedisServer, section: Section, after: Member | None, forward: bool) -> Iterator[list[Member]]:
    """The members of a section in batches. Each batch starts at the last member of the one before."""
    batch = _FIRST_BATCH
    falling = section.falling == forward
    read = _of_list if section.shape is Shape.LIST else _of_sorted_set
    while found := read(server, section.key, after, falling, batch):
        yield found
        after = found[-1]
        batch = min(batch * 2, _LARGEST_BATCH)


def _of_sorted_set(server: RedisServer, key: str, after: Member | None, falling: bool, batch: int) -> list[Member]:
    """Each reply begins with a member that is not wanted any more: so none was left out by changes meanwhile."""
    command = "ZREVRANGE" if falling else "ZRANGE"
    start = 0 if after is None else max(_members_before(server, key, after, falling) - 1, 0)
    while True:
        reply = server.call(command, key, start, start + batch, "WITHSCORES")
        found = scored(reply)
        if after is None:
            return found
        if start and (not found or _is_beyond(found[0], after, falling)):  # others were removed before it
            start = max(start - batch, 0)
            continue
        wanted = [member for member in found if _is_beyond(member, after, falling)]
        if wanted or len(found) <= batch:
            return wanted
        start += batch


def members_at(server: RedisServer, section: Section, scores: Set[float]) -> list[Member]:
    """The members of a sorted set that have one of these scores. Those of a plan are often neighbours, so the members
    from the lowest score on are read at once; those with the scores that are left, score by score."""
    if not scores:
        return []
    limit = 2 * len(scores)
    span = repr(min(scores)), repr(max(scores))
    near = scored(server.call("ZRANGEBYSCORE", section.key, *span, "WITHSCORES", "LIMIT", 0, limit))
    # If there are more, some with the last score may be missing.
    left = sorted(score for score in scores if score >= near[-1].score) if len(near) == limit else []
    found = [member for member in near if member.score in scores and (not left or member.score < left[0])]
    replies = server.pipeline([("ZRANGEBYSCORE", section.key, repr(score), repr(score)) for score in left])
    return found + [Member(name, score) for score, names in zip(left, replies, strict=True) for name in names]


def scored(reply: Sequence[bytes]) -> list[Member]:
    """The members in a reply that also has their scores."""
    return [Member(name, float(score)) for name, score in zip(reply[::2], reply[1::2], strict=True)]


def _members_before(server: RedisServer, key: str, edge: Member, falling: bool) -> int:
    """How many members come before this one, itself included; if it is gone, how many have a score before its own."""
    score = repr(edge.score)
    rank, present, before = server.pipeline(
        [
            ("ZREVRANK" if falling else "ZRANK", key, edge.name),
            ("ZSCORE", key, edge.name),
            ("ZCOUNT", key, f"({score}", "+inf") if falling else ("ZCOUNT", key, "-inf", f"({score}"),
        ]
    )
    is_there = rank is not None and float(present) == edge.score
    return int(rank) + 1 if is_there else int(before)


def _is_beyond(member: Member, edge: Member, falling: bool) -> bool:
    here, there = (member.score, member.name), (edge.score, edge.name)
    return here < there if falling else here > there


def _of_list(server: RedisServer, key: str, after: Member | None, falling: bool, batch: int) -> list[Member]:
    """Positions count from the end where a walk begins, so that they rarely change while it goes on."""
    start = 0
    if after is not None:
        start = int(after.score) + 1
        at = -start if falling else start - 1
        if server.call("LINDEX", key, at) != after.name:
            found = server.call("LPOS", key, after.name, "RANK", -1 if falling else 1)
            if found is not None:
                start = (int(server.call("LLEN", key)) - int(found)) if falling else int(found) + 1
    if falling:
        reply = server.call("LRANGE", key, -start - batch, -start - 1)
        reply.reverse()
    else:
        reply = server.call("LRANGE", key, start, start + batch - 1)
    return [Member(name, float(start + number)) for number, name in enumerate(reply)]
