"""The script that moves BullMQ jobs as BullMQ's own scripts do, each only if nothing has touched it since.

It differs from BullMQ's own in one thing: the error of the last attempt is kept until the next one ends.
"""

from __future__ import annotations

from console.keyed.job_hash import hash_script
from console.keyed.marks import EACH
from plugins.bullmq.jobs import KEPT, WRITTEN

CHANGE = hash_script(WRITTEN, KEPT, """
local queues = {}
-- the settings of a queue; nobody changes them while this script runs
local function queue(base)
  if not queues[base] then
    local paused, version, limit, events = unpack(
      redis.call('HMGET', base .. 'meta', 'paused', 'version', 'concurrency', 'opts.maxLenEvents'))
    -- until version 5 the jobs of a paused queue are in a list of their own
    local major = tonumber(string.match(version or '', ':(%d+)'))
    local list = (paused and (not major or major < 6)) and 'paused' or 'wait'
    local maxed = limit and redis.call('LLEN', base .. 'active') >= tonumber(limit)
    queues[base] = {list = base .. list, wakes = not paused and not maxed, events = events or 10000}
  end
  return queues[base]
end

local function event(base, ...)
  redis.call('XADD', base .. 'events', 'MAXLEN', '~', queue(base).events, '*', ...)
end

local function enqueue(base, id, lifo)
  local priority = tonumber(redis.call('HGET', base .. id, 'priority') or 0) or 0
  if priority > 0 then
    local number = redis.call('INCR', base .. 'pc') % 0x100000000
    redis.call('ZADD', base .. 'prioritized', string.format('%.0f', priority * 0x100000000 + number), id)
  else
    redis.call(lifo == '1' and 'RPUSH' or 'LPUSH', queue(base).list, id)
  end
  -- BullMQ wakes a worker by a marker
  if queue(base).wakes then
    redis.call('ZADD', base .. 'marker', 0, '0')
    queue(base).wakes = false
  end
end

local function is(key, shape)
  return redis.call('TYPE', key).ok == shape
end

-- take a job out of the place where it is: the name of that place
local function taken(base, place, id, score, lifo)
  if place ~= 'waiting' then
    local key = base .. place
    local found = is(key, 'zset') and redis.call('ZSCORE', key, id)
    if not found or tonumber(found) ~= tonumber(score) then return nil end
    redis.call('ZREM', key, id)
    return place
  end
  for _, list in ipairs({'wait', 'paused'}) do
    local key = base .. list
    -- what was pushed last is found first
    if is(key, 'list') and redis.call('LREM', key, lifo == '1' and -1 or 1, id) == 1 then return list end
  end
  local key = base .. 'prioritized'
  if is(key, 'zset') and redis.call('ZREM', key, id) == 1 then return 'prioritized' end
end

local function wake_for_delayed(base)
  local first = redis.call('ZRANGE', base .. 'delayed', 0, 0, 'WITHSCORES')
  if first[2] then redis.call('ZADD', base .. 'marker', string.format('%.0f', tonumber(first[2]) / 0x1000), '1') end
end

-- a move: its queue and id, its id, its digest, its score
-- shared: the beginning of the queue's keys; where it is; what to do, the score where it goes, lifo; its new fields
local function change(args, shared)
  local base, place, what, lifo = shared[1], shared[2], shared[3], shared[5]
  local id, job = args[3], base .. args[3]
  local _, digest = read(job)
  if digest ~= args[4] then return missing(job) and -1 or 0 end
  local from = taken(base, place, id, args[5], lifo)
  if not from then return 0 end
  if what == 'remove' then
    local unique = redis.call('HGET', job, 'deid')
    if unique and redis.call('GET', base .. 'de:' .. unique) == id then redis.call('DEL', base .. 'de:' .. unique) end
    redis.call('DEL', job, job .. ':logs', job .. ':dependencies', job .. ':processed', job .. ':failed',
      job .. ':unsuccessful')
    event(base, 'event', 'removed', 'jobId', id, 'prev', from)
    return 1
  end
  write(job, shared)
  if what == 'waiting' then
    enqueue(base, id, lifo)
    event(base, 'event', 'waiting', 'jobId', id, 'prev', from)
  else
    redis.call('ZADD', base .. what, shared[4], id)
    if what == 'delayed' then wake_for_delayed(base) end
  end
  return 1
end
""" + EACH)
