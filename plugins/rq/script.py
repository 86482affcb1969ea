"""The script that moves RQ jobs, each only if nothing has touched it since it was read."""

from __future__ import annotations

from console.keyed.job_hash import hash_script
from console.keyed.marks import TOGETHER
from plugins.rq.jobs import KEPT, WRITTEN

CHANGE = hash_script(WRITTEN, KEPT, also=("ttl",), body="""
local shapes = {}
local function is(key, shape)
  if not shapes[key] or shapes[key] == 'none' then shapes[key] = redis.call('TYPE', key).ok end
  return shapes[key] == shape or shapes[key] == 'none'
end

local function scores(key, shape, ids)
  return shape == 'zset' and redis.call('ZMSCORE', key, unpack(ids)) or {}
end

-- take a job out of the place where it is; those in a sorted set are taken together afterwards
local function taken(id, from, shape, wanted, score)
  if shape == 'zset' then return score and tonumber(score) == tonumber(wanted) end
  -- what was pushed last is found first
  return redis.call('LREM', from, -1, id) == 1
end

-- where a job goes, its hash expires at a given time; in a queue it does not, unless it has a time to live of its own
local function expire(job, shape, at, ttl)
  if shape == 'zset' then
    if at ~= '' then redis.call('EXPIREAT', job, at) end
    return
  end
  local seconds = string.match(ttl or '', '^0*([1-9]%d*)$')
  if seconds and #seconds < 10 then redis.call('EXPIRE', job, seconds) else redis.call('PERSIST', job) end
end

-- jobs that go the same way, by their numbers
-- a move: its id, its digest, its score
-- shared: shape and key where it is; shape, key and score where it goes; when its hash expires there; its new fields
local function move(some, moves, shared, results)
  local from_shape, from, to_shape, to, to_score, expires = unpack(shared)
  local ids, gone, done = {}, {}, {}
  for i = 1, #some do ids[i] = moves[some[i]][1] end
  local found = is(from, from_shape) and is(to, to_shape) and scores(from, from_shape, ids)
  for i = 1, #some do
    local id, args = ids[i], moves[some[i]]
    local job = 'rq:job:' .. id
    local values, digest = read(job)
    local result = 0
    if digest ~= args[3] then
      result = missing(job) and -1 or 0
    elseif found and not done[id] and taken(id, from, from_shape, args[4], found[i]) then
      write(job, shared)
      expire(job, to_shape, expires, values[#values])
      done[id], gone[#gone + 1], result = true, id, 1
    end
    results[some[i]] = result
  end
  if #gone == 0 then return end
  if from_shape == 'zset' then redis.call('ZREM', from, unpack(gone)) end
  if to_shape == 'list' then redis.call('RPUSH', to, unpack(gone)) return end
  for i = 1, #gone do redis.call('ZADD', to, to_score, gone[i]) end
end
""" + TOGETHER)
