--[[ Health of a queue, at the same cost however many jobs are in it: sizes, counts by score, and of each state a random
sample of jobs, from which ages and shares are estimated. The first of the ready jobs, of the level that runs first and of
the one that runs last, and the first of the scheduled, are added, since the oldest are there. It writes nothing, so that
users with read-only access can call it.

KEYS  jobs running ready scheduled waiting claims carried done dead idle paused pauses limits parked stats minutes
      sought offers instances
      faults     hash  keys and values that another program wrote, see store/lua/include/guard.lua
      ended      -     prefix of records of finished jobs
ARGV  most       int   jobs of each state in the sample
      ahead      int   jobs of each line, from its head
      stuck_ms   int   overdue, or running under no lease, for so long
      wait_ms    int   waiting for others for so long
      late_ms    int   leases that ran out so long ago, of jobs that no worker takes over
      recent_ms  int   dead letters since then
GIVES now; sizes: ready, scheduled, running, waiting, done, dead; idle workers, paused;
      open breakers that hold jobs back, or will, as name, text, ...; of the sampled jobs that wait, how many are parked;
      overdue, overdue for stuck_ms, first due time, leases that ran out, waiting for wait_ms, since when the first waits,
      dead since recent_ms, first death, first of the done;
      jobs as id, score, since when (handed out, revived, freed; 0: created), task, how long after its creation it was due,
      1 if it may have been ready later than that, ...:
      ready, heads of ready, scheduled, heads of scheduled, running, waiting; scores of some of the dead, of the done;
      counters as field, value, ...; minutes as minute, text, ...;
      tasks unknown to all live workers, and how many jobs wait for one, as task, count, ...;
      faults as name, time and text, ..., those of this call last ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/parked_key
-- @include store/now
-- @include limits/queue_pause
-- @include engine/tenant
-- @include engine/count_expired
-- @include limits/breaker
-- @include engine/unknown_tasks
local LEVEL = 8796093022208 -- as in engine/include/fair_tags.lua
local BREAKERS = 500 -- pauses among which open breakers are looked for: there may be one for each of many tenants
local BODY, BODIES = 16384, 262144 -- bytes of one body, and of all of a state, that are read for the name of its task

local done_gone, dead_gone = gone(done), gone(dead)

local function facts_of(rows)
  local entries, ids, some, of, left = {}, {}, {}, {}, BODIES
  for i = 1, #rows, 2 do ids[#ids + 1] = rows[i] end
  if #ids == 0 then return entries end
  local held = redis.call('HMGET', claims, unpack(ids))
  for _, id in ipairs(ids) do
    local size = redis.call('HSTRLEN', jobs, id)
    if size > 0 and size <= BODY and size <= left then
      left = left - size
      some[#some + 1] = id
    end
  end
  if #some > 0 then
    local bodies = redis.call('HMGET', jobs, unpack(some))
    for i, id in ipairs(some) do of[id] = bodies[i] end
  end
  for i, id in ipairs(ids) do
    local body = of[id] or ''
    local task, later = string.sub(body ~= '' and task_of(body) or '', 3), tonumber(string.match(body, '"d":(%d+)'))
    local worker, since = string.match(held[i] or '', '^%d+ (%S+) (%d+)')
    since = tonumber(since) or 0
    local waits = later == 0 or string.find(body, '"wf":"', 1, true) or string.find(body, '"i":"', 1, true)
    local freed = waits and tonumber(redis.call('HGET', carried_key(id), 'since') or nil)
    if freed then since = math.max(since, freed + (later or 0)) end
    -- A revived job is as old as its claim says; of one that was tried before, only the start of that attempt is known.
    local late = (waits and not freed and worker ~= 'none') or (worker and worker ~= 'none')
    for _, value in ipairs({ id, rows[i * 2], string.format('%d', since), task, later or 0, late and 1 or 0 }) do entries[#entries + 1] = value end
  end
  return entries
end
local function some_of(set) return redis.call('ZRANDMEMBER', set, most, 'WITHSCORES') end
local function heads_of(set) return redis.call('ZRANGE', set, 0, ahead - 1, 'WITHSCORES') end
local function scores_of(set)
  local scores, rows = {}, some_of(set)
  for i = 2, #rows, 2 do scores[#scores + 1] = rows[i] end
  return scores
end
local function first_of(set, at) return redis.call('ZRANGE', set, at, at, 'WITHSCORES')[2] or '0' end
local function until_ms(ms) return string.format('%d', now - ms) end
local function open_breakers()
  local found, rows = {}, redis.call('HSCAN', pauses, 0, 'MATCH', 'b:*', 'COUNT', BREAKERS)[2]
  for i = 1, #rows, 2 do
    if is_open('t:' .. string.sub(rows[i], 3)) then found[#found + 1], found[#found + 2] = rows[i], rows[i + 1] end
  end
  return found
end

-- A waiting job that does not wait for other jobs is in a line: a limit, a pause or a breaker holds it back.
local waits, in_lines = some_of(waiting), 0
for i = 1, #waits, 2 do
  if redis.call('HGET', carried_key(waits[i]), 'life') ~= 'waits' then in_lines = in_lines + 1 end
end

local heads = heads_of(ready)
local last = redis.call('ZRANGE', ready, -1, -1, 'WITHSCORES')[2]
if last then
  local level = string.format('%.0f', math.floor(last / LEVEL) * LEVEL)
  for _, value in ipairs(redis.call('ZRANGE', ready, level, '+inf', 'BYSCORE', 'LIMIT', 0, ahead, 'WITHSCORES')) do heads[#heads + 1] = value end
end
local reply = {
  now,
  { redis.call('ZCARD', ready), redis.call('ZCARD', scheduled), redis.call('ZCARD', running), redis.call('ZCARD', waiting),
    redis.call('ZCARD', done) - done_gone, redis.call('ZCARD', dead) - dead_gone },
  redis.call('ZCOUNT', idle, now, '+inf'),
  is_halted() and 1 or 0,
  open_breakers(), in_lines,
  { redis.call('ZCOUNT', scheduled, '-inf', string.format('%.0f', now * 1024 + 1023)),
    redis.call('ZCOUNT', scheduled, '-inf', string.format('%.0f', (now - stuck_ms) * 1024 + 1023)), first_of(scheduled, 0),
    redis.call('ZCOUNT', running, '-inf', until_ms(late_ms)), redis.call('ZCOUNT', waiting, '-inf', until_ms(wait_ms)), first_of(waiting, 0),
    redis.call('ZCOUNT', dead, until_ms(recent_ms), '+inf'), first_of(dead, dead_gone), first_of(done, done_gone) },
  { facts_of(some_of(ready)), facts_of(heads), facts_of(some_of(scheduled)), facts_of(heads_of(scheduled)), facts_of(some_of(running)), facts_of(waits) },
  scores_of(dead), scores_of(done),
  redis.call('HGETALL', stats),
  redis.call('HGETALL', minutes),
  unknown_tasks(),
  redis.call('HGETALL', faults),
}
for _, text in ipairs(faults_now or {}) do reply[#reply][#reply[#reply] + 1] = text end -- found by this call, which may not write
return reply
