--[[ Keep the counters of a queue as of this minute, unless another worker did so before; and remove expired records from its
indexes. Jobs that no live worker takes any more are made ready, to be refused.
KEYS  stats      hash  counters
      minutes    hash  minute -> when, counters
      ended      -     prefix of records of finished jobs
      done dead cancelled expired kinds
      ready scheduled groups idle bell parked rerouted sought offers instances
      alike      -     prefix of the ids of each error group
      faults     hash  keys and values that another program wrote, see store/lua/include/guard.lua
ARGV  hour_ms    int   TTL of the minutes
GIVES faults as name, time and text, ... ]]
-- @include store/ended_key
-- @include store/parked_key
-- @include store/alike_key
-- @include store/now
-- @include health/minute
-- @include engine/wake_worker
-- @include engine/rerouted
-- @include engine/takers
-- @include engine/unwanted_jobs
local PART = 500 -- entries of a list that are looked at
-- Another part of each index every minute, since a long-lived record may come before many that have expired.
local function sweep(index)
  local parts = math.ceil(redis.call('ZCARD', index) / PART)
  if parts == 0 then return end
  local from = math.floor(now / 60000) % parts * PART
  local ids, records, gone = redis.call('ZRANGE', index, from, from + PART - 1), {}, {}
  for i, id in ipairs(ids) do records[i] = ended_key(id) end
  if redis.call('EXISTS', unpack(records)) == #ids then return end -- most often
  for i, id in ipairs(ids) do
    if redis.call('EXISTS', records[i]) == 0 then gone[#gone + 1] = id end
  end
  redis.call('ZREM', index, unpack(gone))
end
if keep_minute() then
  for _, index in ipairs({ done, dead, cancelled, expired }) do sweep(index) end
  if free_hopeless() > 0 then
    local other = wake()
    if other then ring(other, '') end
  end
  for _, kind in ipairs(redis.call('HRANDFIELD', kinds, 3)) do sweep(alike_key(kind)) end
end
return redis.call('HGETALL', faults)
