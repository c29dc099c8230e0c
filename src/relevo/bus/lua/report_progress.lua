--[[ Queue an interim report for a callback that still waits for the reply; after the reply it is dropped.
KEYS  jobs ready scheduled running waiting claims carried groups clock idle bell stats instances paused limits parking made
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      keep_ms    int   how long the counters live without traffic
      callback   id    the callback
      id         id    the job of the report
      body       json  of that job
GIVES 1, or 0 if the callback has been settled (or the report is there already) ]]
-- @include store/carried_key
-- @include store/made_key
-- @include engine/accept_call
if was_done then return 1 end
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/place_waiting
-- @include engine/tally
-- @include engine/stick_to_worker
local known = redis.call('HMGET', carried_key(callback), 'life', 'place', 'conversation', 'prefer')
if known[1] ~= 'waits' or not redis.call('ZSCORE', waiting, callback) or redis.call('HEXISTS', jobs, id) == 1 then return 0 end
local priority, _, weight, _, tenant = place_in(known[2])
local known_ms, conversation = string.match(known[3] or '', '^(%d+) (.+)$')
if conversation then
  redis.call('ZADD', made_key(conversation), now, id)
  redis.call('PEXPIRE', made_key(conversation), known_ms)
end
redis.call('HSET', jobs, id, body)
tally('enqueued', 1)
if stick(id, known[4]) then return 1 end
put(id, priority, '', tenant, weight)
keep_marks()
local worker = wake()
if worker then ring(worker, '') end
return 1
