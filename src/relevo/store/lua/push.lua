--[[ Put plain jobs on their queue: those with nothing but a priority, which are most.

With a worker waiting and nothing queued before it, a single job is claimed for that worker at once and its body put
on the worker's bell: one round trip saved, and no other worker woken for nothing. All else is in push_rich.lua.

KEYS  jobs       hash  bodies of living jobs
      ready      zset  priority and fair tag
      running    zset  lease deadline
      claims     hash  "token worker since" of jobs that were handed out
      clock      hash  virtual times of the fair tags
      stats      hash  counters
      idle       zset  workers that wait, until when they are believed alive
      bell       -     prefix of the workers' bells
      ended      -     prefix of records of finished jobs
ARGV  again      flag  1: the client lost the reply to this very call and repeats it
      lease_ms   int   lease of a job handed over directly
      keep_ms    int   how long the counters live without traffic
                       then per job: id, priority, body
GIVES how many were stored ]]
local LEVEL = 8796093022208 -- as in place.lua
-- The mark of the group without a name never lags behind its level's clock (turn.lua sees to that), so that its next tags
-- are one addition away.
local function next_tag(priority, n)
  local last = redis.call('HINCRBY', clock, priority .. ':', 64 * n)
  if last >= LEVEL then
    last = LEVEL - 1
    redis.call('HSET', clock, priority .. ':', string.format('%.0f', last))
  end
  return last
end
local function known(id) -- only asked of repeated calls: ids are made by the client and never used twice
  return redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended .. ':' .. id) == 1
end

if #ARGV == 6 then
  local id, priority, body = ARGV[4], ARGV[5], ARGV[6]
  if again == '1' and known(id) then return 0 end
  redis.call('HSET', jobs, id, body)
  if redis.call('HINCRBY', stats, 'enqueued', 1) == 1 then redis.call('PEXPIRE', stats, keep_ms) end
  local waiting = redis.call('ZPOPMAX', idle)
  if not waiting[1] then
    redis.call('ZADD', ready, priority * LEVEL + next_tag(priority, 1), id)
    return 1
  end
  -- @include now
  -- @include wake
  local worker = tonumber(waiting[2]) >= now and waiting[1] or wake()
  if worker and redis.call('EXISTS', ready) == 0 then
    redis.call('ZADD', running, now + lease_ms, id)
    redis.call('HSET', claims, id, '1 ' .. worker .. ' ' .. now)
    ring(worker, 'j' .. id .. body)
  else
    redis.call('ZADD', ready, priority * LEVEL + next_tag(priority, 1), id)
    if worker then ring(worker, '') end
  end
  return 1
end

-- @include now
-- @include wake
local bodies, entries, levels, stored = {}, {}, {}, 0
for i = 4, #ARGV, 3 do
  if again ~= '1' or not known(ARGV[i]) then
    stored = stored + 1
    bodies[stored * 2 - 1], bodies[stored * 2] = ARGV[i], ARGV[i + 2]
    entries[stored * 2 - 1], entries[stored * 2] = ARGV[i + 1], ARGV[i]
    levels[ARGV[i + 1]] = (levels[ARGV[i + 1]] or 0) + 1
  end
end
if stored == 0 then return 0 end
for priority, n in pairs(levels) do levels[priority] = priority * LEVEL + next_tag(priority, n) - 64 * n end
for i = 1, stored * 2, 2 do
  local priority = entries[i]
  levels[priority] = levels[priority] + 64
  entries[i] = levels[priority]
end
for i = 1, stored * 2, 4000 do
  local last = math.min(i + 3999, stored * 2)
  redis.call('HSET', jobs, unpack(bodies, i, last))
  redis.call('ZADD', ready, unpack(entries, i, last))
end
if redis.call('HINCRBY', stats, 'enqueued', stored) == stored then redis.call('PEXPIRE', stats, keep_ms) end
for _ = 1, math.min(stored, 64) do
  local worker = wake()
  if not worker then break end
  ring(worker, '')
end
return stored
