"""Jobs that are stored as hashes: how a script tells that one is unchanged, and writes its fields."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha1

MISSING, UNCHANGED = "\0", "\1"
"""What is sent instead of a new value: the field goes, or stays as it is."""

_FUNCTIONS = """
local parts = {}
local function joined(values, first, last)
  for i = first, last do
    local value = values[i]
    parts[i] = value and '=' .. value .. '\\0' or '-\\0'
  end
  return table.concat(parts, '', first, last)
end

-- the fields that are looked at, and their digest
local function read(key)
  local values = redis.call('HMGET', key, unpack(fields))
  local kept = redis.sha1hex(joined(values, #written + 1, compared))
  return values, redis.sha1hex(joined(values, 1, #written) .. kept)
end

local function missing(key)
  return redis.call('EXISTS', key) == 0
end

-- the new values are the last ones
local function write(key, values)
  local first, kept, gone = #values - #written, {}, {}
  for i = 1, #written do
    local value = values[first + i]
    if value == '\\0' then
      gone[#gone + 1] = written[i]
    elseif value ~= '\\1' then
      kept[#kept + 1] = written[i]
      kept[#kept + 1] = value
    end
  end
  if #kept > 0 then redis.call('HSET', key, unpack(kept)) end
  if #gone > 0 then redis.call('HDEL', key, unpack(gone)) end
end
"""


def hash_script(written: Sequence[str], kept: Sequence[str], body: str, also: Sequence[str] = ()) -> str:
    """A script's body with functions for a hash with these fields: `read(key)`, `missing(key)`, `write(key, values)`.

    The values that `read` returns are those of `written`, `kept` and `also`. The last ones are not compared.
    """
    fields = f"local fields, compared = {_lua((*written, *kept, *also))}, {len(written) + len(kept)}\n"
    return f"{fields}local written = {_lua(written)}\n{_FUNCTIONS}{body}"


def _lua(names: Iterable[str]) -> str:
    return "{" + ", ".join(f"'{name}'" for name in names) + "}"


def digest(fields: Mapping[str, bytes | None], names: Iterable[str]) -> str:
    """A digest of the fields that a change does not write, as the script computes it."""
    return _sha1(_joined([fields[name] for name in names]))


def guard(written: Iterable[str | None], kept: str) -> bytes:
    """The digest that a script compares: of an image's values of the written fields, and its digest of the others."""
    return _sha1(_joined([None if value is None else value.encode() for value in written]) + kept.encode()).encode()


def written_values(before: Iterable[str | None], after: Iterable[str | None]) -> tuple[str, ...]:
    """What is sent so that the written fields become those of an image."""
    return tuple([
        UNCHANGED if new == old else MISSING if new is None else new for old, new in zip(before, after, strict=True)
    ])


def _joined(values: Iterable[bytes | None]) -> bytes:
    """Values with a zero byte after each, a minus sign for a missing one."""
    return b"".join([b"-\0" if value is None else b"=%b\0" % value for value in values])


def _sha1(value: bytes) -> str:
    return sha1(value).hexdigest()  # noqa: S324  Redis has no other digest
