--[[ Store one message on a service's queue, with or without a sender that waits. Like engine/push.lua, with what a message
may have besides: a waiter that is notified of its end, a deadline by the server's clock, a tenant's share, a name that
prevents duplicates, a conversation. If a worker is idle and nothing is queued before it, it is handed over at once.
KEYS  jobs ready scheduled running claims groups clock waiters stats idle bell limits parking
      instances  zset  workers that serve the queue, until when they count as alive
      offers     hash  action -> until when a worker serves it
      unique     -     prefix of names held for a time
      made       -     prefix of what was made on behalf of a conversation
      carried    -     prefix of what jobs carry with them
      ended      -     prefix of records of finished jobs
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      lease_ms   int   lease of a job handed over directly
      keep_ms    int   how long the counters live without traffic
      id         id    the message
      action     text  what a worker must serve; '': it waits for one
      priority tenant weight
      tier       text  counted by; '': none
      when       time  '' now, '+ms' after a delay
      waiter     text  the inbox or edge that is notified of its end; '': none
      timeout_ms  int  its deadline from now; 0: none, or the body says it
      name hold_ms     the same name is the same message for so long; '': none
      anew       flag  1: unless nothing is left of that one
      conversation known_ms  made on its behalf, known for so long; '': none
      claimed    flag  1: its data stands in its bag
      body       json  without its closing brace, which the deadline may come before
GIVES 'stored', 'unserved', 'taken' and the id that has the name, or 'gone': an earlier try was carried out and
      nothing is left of the message ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/unique_key
-- @include store/made_key
-- @include engine/accept_call
-- @include engine/keep_answer
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/place_waiting
-- @include engine/tally
local function known(id)
  return redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended_key(id)) == 1
end
if said_then then return { string.match(said_then, '^(%S+) ?(.*)$') } end
if is_repeated and known(id) then return { 'stored', '' } end
if was_done then return { 'gone', '' } end
local owner = name ~= '' and redis.call('GET', unique_key(name))
if owner and owner ~= id then
  -- The record of a failure without a waiter is kept for a moment, but it is no answer.
  local lives = redis.call('HEXISTS', jobs, owner) == 1
  if anew == '0' or lives or redis.call('GETRANGE', ended_key(owner), 0, 14) == '{"state":"done"' then
    remember('taken ' .. owner)
    return { 'taken', owner }
  end
end
if action ~= '' then
  local offered = redis.call('ZCOUNT', instances, now, '+inf') > 0 and redis.call('HGET', offers, action)
  if not offered or tonumber(string.match(offered, '^%d+') or 0) < now then
    remember('unserved')
    return { 'unserved', '' }
  end
end
if name ~= '' then redis.call('SET', unique_key(name), id, 'PX', hold_ms) end
if tonumber(timeout_ms) > 0 then -- from when it is due
  body = body .. ',"x":' .. string.format('%d', now + timeout_ms + (tonumber(string.sub(when, 2)) or 0))
end
body = body .. '}'
redis.call('HSET', jobs, id, body)
if claimed == '1' then redis.call('PERSIST', carried_key(id)) end
if waiter ~= '' then redis.call('HSET', waiters, id, waiter) end
if conversation ~= '' then
  redis.call('ZADD', made_key(conversation), now, id)
  redis.call('PEXPIRE', made_key(conversation), known_ms)
end
tally('enqueued', 1)
if tier ~= '' then redis.call('HINCRBY', stats, 'tier:' .. tier, 1) end
local worker = wake()
local ahead = worker and when == '' and redis.call('EXISTS', ready, limits, parking)
if ahead and ahead > 0 and redis.call('EXISTS', ready) == 0 then
  -- @include limits/is_bound
  if not is_bound(body) then ahead = 0 end
end
if ahead == 0 then
  redis.call('ZADD', running, now + lease_ms, id)
  redis.call('HSET', claims, id, '1 ' .. worker .. ' ' .. string.format('%d', now))
  ring(worker, 'j' .. id .. body)
else
  put(id, priority, when, tenant, weight)
  keep_marks()
  if worker then ring(worker, '') end
end
return { 'stored', '' }
