--[[ Put plain jobs of one priority on their queue: those without further options, which are most.

If a worker is idle and nothing is queued ahead, a single job is claimed for that worker at once and its body is put
on the worker's bell: this saves one round trip, and wakes no worker in vain. All other jobs go through engine/push_with_options.lua.

KEYS  jobs       hash  bodies of living jobs
      ready      zset  priority and fair tag
      running    zset  lease deadline
      claims     hash  "token worker since" of jobs that were handed out
      clock      hash  virtual times of the fair tags
      stats      hash  counters
      idle       zset  workers that wait, until when they count as alive
      bell       -     prefix of the workers' bells
      limits     hash  of the queue, its tasks and its tenants
      parking    zset  names whose lines have jobs
      ended      -     prefix of records of finished jobs
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      lease_ms   int   lease of a job handed over directly
      keep_ms    int   how long the counters live without traffic
      priority   int   of all of them
                       then per job: id, body
GIVES how many were stored ]]
local LEVEL = 8796093022208 -- as in engine/include/fair_tags.lua

-- @include engine/accept_call
if was_done then return 0 end
-- The mark of the empty tenant never lags behind its level's clock (engine/turn.lua sees to that), so that its next tags are one
-- addition away. No function of this script is made before it is needed: most calls store one job and wake no worker.
local level = priority .. ':'
if #ARGV == 7 then
  local id, body = ARGV[6], ARGV[7]
  if is_repeated then -- ids are made by the client and never used twice
    -- @spell ended
    if redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended .. ':' .. id) == 1 then return 0 end
  end
  redis.call('HSET', jobs, id, body)
  if redis.call('HINCRBY', stats, 'enqueued', '1') == 1 then redis.call('PEXPIRE', stats, keep_ms) end
  local waiting = redis.call('ZPOPMAX', idle)
  local worker
  if waiting[1] then
    -- @spell running claims bell limits parking
    -- @include store/now
    -- @include engine/wake_worker
    worker = is_believed(waiting[2]) and waiting[1] or wake()
    local ahead = worker and redis.call('EXISTS', ready, limits, parking)
    if ahead and ahead > 0 and redis.call('EXISTS', ready) == 0 then
      -- @include limits/is_bound
      if not is_bound(body) then ahead = 0 end
    end
    if ahead == 0 then
      redis.call('ZADD', running, now + lease_ms, id)
      redis.call('HSET', claims, id, '1 ' .. worker .. ' ' .. now)
      ring(worker, 'j' .. id .. body)
      return 1
    end
    if worker then ring(worker, '') end
  end
  local tag = redis.call('HINCRBY', clock, level, '64')
  if tag >= LEVEL then
    tag = LEVEL - 1
    redis.call('HSET', clock, level, string.format('%d', tag))
  end
  redis.call('ZADD', ready, priority * LEVEL + tag, id)
  return 1
end

-- @spell bell
-- @include store/now
-- @include engine/wake_worker
local jobs_given, from, to = ARGV, 6, #ARGV
if is_repeated then
  -- @spell ended
  jobs_given, from, to = {}, 1, 0
  for i = 6, #ARGV, 2 do
    if redis.call('HEXISTS', jobs, ARGV[i]) == 0 and redis.call('EXISTS', ended .. ':' .. ARGV[i]) == 0 then
      jobs_given[to + 1], jobs_given[to + 2] = ARGV[i], ARGV[i + 1]
      to = to + 2
    end
  end
end
local stored = (to - from + 1) / 2
if stored == 0 then return 0 end
redis.call('HSET', jobs, unpack(jobs_given, from, to))
local last = redis.call('HINCRBY', clock, level, 64 * stored)
if last >= LEVEL then
  last = LEVEL - 1
  redis.call('HSET', clock, level, string.format('%d', last))
end
local tag, entries = priority * LEVEL + last - 64 * stored, {}
for i = 1, stored do
  tag = tag + 64
  -- as text: the server would print the number with 17 digits, for three times the cost
  entries[i * 2 - 1], entries[i * 2] = string.format('%d', tag), jobs_given[from + i * 2 - 2]
end
redis.call('ZADD', ready, unpack(entries))
if redis.call('HINCRBY', stats, 'enqueued', stored) == stored then redis.call('PEXPIRE', stats, keep_ms) end
for _ = 1, math.min(stored, 64) do
  local worker = wake()
  if not worker then break end
  ring(worker, '')
end
return stored
