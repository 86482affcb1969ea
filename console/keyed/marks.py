"""Guarded changes in Redis: one script compares and sets a whole chunk, and leaves a mark of it.

The mark `retriage:{override}:{chunk}` is a hash that lives for a day. It names the members of the chunk that were not
changed; all others were. A console that crashed between the write and its record finds out from the mark what it did.
If there is no mark within that day, the chunk was not written, and the mark is then written as void: a script that is
still on its way to the server sees it and changes nothing. Later nobody can tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import NamedTuple

from console.core.backend import Authority
from console.core.faults import BackendBusy, BackendFault
from console.keyed.redis_server import RedisServer, Script, text

MARK_LIFE = timedelta(days=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SETTLED = "RETRIAGE-SETTLED"

_FRAME = """
%s
local mark, life = KEYS[1], ARGV[1]
if mark ~= '' and redis.call('EXISTS', mark) == 1 then return redis.error_reply('%s') end
local at = 2
local function rows()
  local width, count, found = tonumber(ARGV[at]), tonumber(ARGV[at + 1]), {}
  at = at + 2
  for n = 1, count do
    found[n] = {unpack(ARGV, at, at + width - 1)}
    at = at + width
  end
  return found
end
local shared, moves = rows(), rows()
local results = apply(moves, shared)
if mark ~= '' then
  redis.call('HSET', mark, '', 'done')
  for n = 1, #moves do
    if results[n] ~= 1 then redis.call('HSET', mark, moves[n][1], '-') end
  end
  for i = at, #ARGV do redis.call('HSET', mark, ARGV[i], '-') end
  redis.call('EXPIRE', mark, life)
end
return results
"""

_SETTLE = Script("""
local state = redis.call('HGET', KEYS[1], '')
if not state then
  state = 'void'
  redis.call('HSET', KEYS[1], '', state)
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
local found = {state}
for i = 2, #ARGV do found[i] = redis.call('HEXISTS', KEYS[1], ARGV[i]) end
return found
""")


Argument = bytes | str


class Move(NamedTuple):
    """One change, as a script gets it."""

    name: bytes
    """The member."""
    own: tuple[Argument, ...]
    shared: tuple[Argument, ...]
    """What is usually the same for many moves: it is sent once for all of them."""


class Moved(IntEnum):
    """What the script's `change` returns for one job."""

    GONE = -1
    CHANGED = 0
    APPLIED = 1


EACH = """
local function apply(moves, shared)
  local results = {}
  for n = 1, #moves do results[n] = change(moves[n], shared[tonumber(moves[n][2])]) end
  return results
end
"""
"""For a body that defines `change(args, shared)`, which makes one move."""

TOGETHER = """
local most = 500
local function apply(moves, shared)
  local results, groups = {}, {}
  for n = 1, #moves do
    local group = tonumber(moves[n][2])
    local some = groups[group] or {}
    groups[group] = some
    some[#some + 1] = n
    if #some == most then
      move(some, moves, shared[group], results)
      groups[group] = nil
    end
  end
  for group = 1, #shared do
    if groups[group] then move(groups[group], moves, shared[group], results) end
  end
  return results
end
"""
"""For a body that defines `move(some, moves, shared, results)`, which makes the moves with these numbers. All of them
have the same shared arguments."""


class GuardedScript:
    """A script that applies many changes. Its body defines `apply(moves, shared)`, which returns a `Moved` for each.

    A move is its member's name, the number of its shared arguments and its own ones. Everything about a job is looked
    at before it is written, because Redis does not take back what a script wrote before it failed.
    """

    def __init__(self, body: str, own: int, shared: int) -> None:
        """`own` and `shared` are how many arguments of each kind a move has."""
        self._own, self._shared = own, shared
        self._script = Script(_FRAME % (body, _SETTLED))

    def run(
        self, server: RedisServer, mark: str, moves: Sequence[Move], left_out: Sequence[bytes]
    ) -> list[Moved]:
        """Apply the moves; what became of each. `left_out` are members of the chunk that had changed before."""
        numbers: dict[tuple[Argument, ...], int] = {}
        rows: list[Argument] = []
        for name, own, shared in moves:
            if (len(own), len(shared)) != (self._own, self._shared):
                raise ValueError(f"{len(own)} and {len(shared)} arguments for {self._own} and {self._shared}")
            rows += (name, str(numbers.setdefault(shared, len(numbers) + 1)), *own)
        arguments: list[Argument | int] = [int(MARK_LIFE.total_seconds()), self._shared, len(numbers)]
        for shared in numbers:
            arguments += shared
        arguments += (2 + self._own, len(moves), *rows)
        try:
            reply = server.run(self._script, [mark], [*arguments, *left_out])
        except BackendFault as fault:
            if _SETTLED in fault.detail:
                raise BackendBusy("another console has settled this chunk already", where=server.place) from None
            raise
        return [Moved(int(one)) for one in reply]


def mark_of(authority: Authority, tag: str = "") -> str:
    """The key of the mark of one write; empty if the write has no time, so that it needs none."""
    return "" if authority.at is None else mark_key(authority.override_id, authority.at, tag)


def mark_key(override_id: str, at: datetime, tag: str = "") -> str:
    """`tag` is the part of the keys in braces, which decides the slot in a cluster."""
    chunk = (at - _EPOCH) // timedelta(microseconds=1)
    return f"retriage:{tag}{override_id}:{chunk}"


def settled(
    server: RedisServer, mark: str, names: Sequence[bytes], at: datetime, *, read_only: bool
) -> list[bool | None]:
    """Whether each member was written by the chunk with this mark, which was announced at this time of the server.

    None if nobody can tell: the mark may have expired or been evicted, or there is none and this console may not write.
    """
    if read_only:
        state, *found = server.pipeline([("HGET", mark, ""), *(("HGET", mark, name) for name in names)])
        left_out = [one is not None for one in found]
    else:
        state, *found = server.run(_SETTLE, [mark], [int(MARK_LIFE.total_seconds()), *names])
        left_out = [bool(int(one)) for one in found]
    if text(state) == "done":
        return [not one for one in left_out]
    is_kept = server.now() - at < MARK_LIFE and not may_evict(server)
    return [False if state is not None and is_kept else None] * len(names)


def may_evict(server: RedisServer) -> bool:
    """Whether the server deletes keys when its memory is full. With most policies, those that expire go first."""
    return eviction_policy(server) != "noeviction"


def eviction_policy(server: RedisServer) -> str:
    return server.info("memory").get("maxmemory_policy", "noeviction")
