--[[ Fire ticks of a schedule, each once however many workers try: a call takes effect only if `due` is the next tick.
KEYS  schedules ticks errands runs jobs ready scheduled waiting carried waiters groups clock idle bell stats pauses
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      name       text  the schedule
      due        int   its next tick; '': run it now, whatever that is
      next       int   its next tick from now on
      overlap    word  skip, queue or allow: while the last job of this schedule is alive
      dropped    int   ticks that were missed and are not caught up
      queue      text  this queue, as edges name it
      keep_ms    int   how long the counters live without traffic
      fail_ms    int   TTL of the record of a job that fails
      runs_ms    int   TTL of the history without a new entry
      runs_max   int   entries kept in the history
                       then per tick: when it was due, id, priority, body, when, tenant, weight
GIVES 'gone', 'other' (fired by another worker, or paused), or 'fired' and the ids that were queued ]]
-- @include store/carried_key
-- @include store/runs_key
-- @include engine/accept_call
if was_done and due == '' then
  local fired = { 'fired' }
  for i = 13, #ARGV, 7 do fired[#fired + 1] = ARGV[i + 1] end
  return fired
end
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/tally
-- @include engine/place_waiting
-- @include schedules/schedule_pause
local mark = '@' .. name
if redis.call('HEXISTS', schedules, name) == 0 then
  redis.call('ZREM', errands, mark)
  return { 'gone' }
end
local function note(tick, id, what)
  if due == '' then tick = '0' end -- not a tick: fired on request
  redis.call('LPUSH', runs_key(name), '[' .. tick .. ',' .. string.format('%d', now) .. ',"' .. id .. '","' .. what .. '"]')
end
if due ~= '' then
  local known = redis.call('HMGET', ticks, 'due:' .. name, 'paused:' .. name)
  -- A worker that took it before the pause must not put it back.
  if known[1] ~= due or is_suspended(known[2]) then return { 'other' } end
  if known[2] then -- the pause is over
    redis.call('HDEL', ticks, 'paused:' .. name)
    redis.call('HDEL', pauses, 's:' .. name)
  end
  redis.call('HSET', ticks, 'due:' .. name, next)
  redis.call('ZADD', errands, next, mark)
end
if tonumber(dropped) > 0 then
  redis.call('HINCRBY', ticks, 'dropped:' .. name, dropped)
  note(due, '', 'dropped ' .. dropped)
end
local last = redis.call('HGET', ticks, 'job:' .. name) or ''
local queued = {}
for i = 13, #ARGV, 7 do
  local tick, id, priority, body = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local when, tenant, weight = ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]
  local lives = overlap ~= 'allow' and redis.call('HEXISTS', jobs, last) == 1
  if lives and overlap == 'skip' then
    redis.call('HINCRBY', ticks, 'skipped:' .. name, 1)
    note(tick, last, 'skipped')
  else
    redis.call('HSET', jobs, id, body)
    if lives then -- it waits for the previous one, however that ends
      redis.call('HSET', carried_key(id), 'life', 'waits', 'open', 1, 'bad', 0, 'keep', fail_ms, 'takes', '',
        'place', table.concat({ priority, when, weight, '', tenant }, '\n'))
      redis.call('ZADD', waiting, now, id)
      local noted = redis.call('HGET', waiters, last)
      redis.call('HSET', waiters, last, (noted and noted .. ' ' or '') .. '>r:' .. id .. queue)
    else
      put(id, priority, when, tenant, weight)
    end
    last = id
    queued[#queued + 1] = id
    note(tick, id, 'fired')
  end
end
if #queued > 0 then
  redis.call('HSET', ticks, 'job:' .. name, last)
  redis.call('HINCRBY', ticks, 'fired:' .. name, #queued)
  tally('enqueued', #queued)
  keep_marks()
  for _ = 1, math.min(#queued, 64) do
    local worker = wake()
    if not worker then break end
    ring(worker, '')
  end
end
redis.call('LTRIM', runs_key(name), 0, runs_max - 1)
redis.call('PEXPIRE', runs_key(name), runs_ms)
return { 'fired', unpack(queued) }
