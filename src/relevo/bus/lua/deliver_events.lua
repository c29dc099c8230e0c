--[[ Put events into the queue of one subscription, each unless it is or was stored there. A full queue drops the oldest or
refuses new ones, so that a slow subscriber does not slow the publisher down.
KEYS  jobs ready scheduled running waiting claims story groups clock waiters stats idle bell parking limits lines closed
      rerouted sought
      parked     -     prefix of the lines of limited names
      carried    -     prefix of what jobs carry with them
      made       -     prefix of the jobs made in a conversation
      ended      -     prefix of records of finished jobs
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      since      int   when the subscription was made; 0: ignore whether it has ended
      backlog    int   jobs that may wait here
      discard    word  old: the oldest is dropped; new: new events are not stored
      keep_ms    int   how long the counters live without traffic
                       then per event: id, priority, tenant, weight, tier, conversation, ms its `made` entry is kept, body
GIVES per event: 1 stored, 2 stored in the place of an older one, 0 it is or was stored, -1 there is no room ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/parked_key
-- @include store/made_key
-- @include engine/accept_call
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/tally
-- @include engine/tenant
-- @include limits/leave_line
backlog = tonumber(backlog)
local function known(id) return redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended_key(id)) == 1 end
-- The oldest job: one in the line of a limited tenant or task; else the first of the level that runs last; else, where all
-- wait for another attempt, the one that is due first. Jobs that wait for other jobs are not dropped.
local function oldest()
  local old = redis.call('ZRANGE', waiting, 0, 0)[1]
  if old and redis.call('HGET', carried_key(old), 'life') ~= 'waits' then return old end
  local last = redis.call('ZRANGE', ready, -1, -1, 'WITHSCORES')[2]
  if not last then return redis.call('ZRANGE', scheduled, 0, 0)[1] end
  local level = string.format('%.0f', math.floor(last / LEVEL) * LEVEL)
  return redis.call('ZRANGE', ready, level, '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
end
local function make_room()
  local old = oldest()
  if not old then return false end
  leave_line(old)
  for _, set in ipairs({ ready, scheduled, waiting }) do redis.call('ZREM', set, old) end
  for _, key in ipairs({ jobs, claims, story, groups, waiters }) do redis.call('HDEL', key, old) end
  redis.call('UNLINK', carried_key(old))
  return true
end
local function nothing_new()
  local codes = {}
  for i = 7, #ARGV, 8 do codes[#codes + 1] = 0 end
  return codes
end
if was_done then return nothing_new() end
if since ~= '0' then
  local life = redis.call('HMGET', closed, 'shut', 'open')
  if tonumber(life[1] or 0) >= tonumber(since) then -- the subscription ended while the publisher was frozen
    return nothing_new()
  end
  if tonumber(life[2] or 0) < tonumber(since) then redis.call('HSET', closed, 'open', since) end
  redis.call('PEXPIRE', closed, 86400000)
end
local reply, stored, lost, queued = {}, 0, 0, redis.call('HLEN', jobs) - redis.call('ZCARD', running)
for i = 7, #ARGV, 8 do
  local id, priority, tenant, weight = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local tier, conversation = ARGV[i + 4], ARGV[i + 5]
  local code
  if known(id) then code = 0
  elseif queued < backlog then
    code, queued = 1, queued + 1
  else
    code = discard == 'old' and make_room() and 2 or -1
    lost = lost + 1
  end
  if code > 0 then
    redis.call('HSET', jobs, id, ARGV[i + 7])
    redis.call('ZADD', ready, place(priority, tenant, weight), id)
    stored = stored + 1
    if tier ~= '' then redis.call('HINCRBY', stats, 'tier:' .. tier, 1) end
    if conversation ~= '' then
      redis.call('ZADD', made_key(conversation), now, id)
      redis.call('PEXPIRE', made_key(conversation), ARGV[i + 6])
    end
  end
  reply[#reply + 1] = code
end
if lost > 0 then tally('overflow', lost) end
if stored > 0 then
  keep_marks()
  tally('enqueued', stored)
  for _ = 1, math.min(stored, 64) do
    local worker = wake()
    if not worker then break end
    ring(worker, '')
  end
end
return reply
