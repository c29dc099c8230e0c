-- Error groups: dead letters with one fingerprint. `alike:<fingerprint>` has their ids by time; `kinds` has, per fingerprint,
-- when it was first seen and the head of its first record. An entry of `kinds` outlives its dead letters for a while, so that
-- an error that comes back after a retry does not count as new.
-- @include engine/record_head
-- @include engine/tidy_index
local KINDS = 500 -- error groups per queue; beyond it, one of those not seen for the longest time is dropped
local ttls = {} -- of the keys that this call has looked at
local function outlive(key, ttl) -- an index lives as long as its longest record
  if ttls[key] and ttls[key] >= ttl then return end
  ttls[key] = ttl
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
end
local kinds_seen = {}
local function join_alike(id, record, ttl, at)
  local kind = kind_of(record)
  if not kind then return end
  local set = alike_key(kind)
  tidy(set, 10)
  redis.call('ZADD', set, at, id)
  outlive(set, ttl)
  local is_new = not kinds_seen[kind] and redis.call('HSETNX', kinds, kind, at .. ' ' .. head_of(record)) == 1
  kinds_seen[kind] = true
  outlive(kinds, ttl)
  if is_new and redis.call('HLEN', kinds) > KINDS then
    local oldest, seen
    for _, one in ipairs(redis.call('HRANDFIELD', kinds, 16)) do
      local last = tonumber(redis.call('ZRANGE', alike_key(one), -1, -1, 'WITHSCORES')[2] or 0)
      if one ~= kind and (not seen or last < seen) then oldest, seen = one, last end
    end
    if oldest then redis.call('HDEL', kinds, oldest) end
  end
end
local function leave_alike(id, record)
  local kind = kind_of(record)
  if not kind then return end
  redis.call('ZREM', alike_key(kind), id)
  ttls[alike_key(kind)] = nil -- with its last id the key is gone
end
