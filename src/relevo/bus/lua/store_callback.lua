--[[ Store a callback before its message is sent: a job that waits for the message's end, or for its own deadline. If the
message is never sent, because its sender died, the callback runs at its deadline.
KEYS  jobs waiting carried errands letters stats idle bell made unique ended
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      keep_ms    int   how long the counters live without traffic
      id         id    the callback
      queue      text  this queue, as edges name it
      priority tenant weight
      fail_ms    int   TTL of the record of a job that fails
      timeout_ms  int  how long it waits
      prefer     text  the worker it should run on if that is alive, and the lease; '': any
      conversation known_ms  its conversation, and how long its `made` entry is kept; '': none
      body       json  the job for a reply
      late       json  the job for its deadline; '': the same
      interim    json  the job for an interim report, up to the report; '': none wanted
GIVES 1 ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/unique_key
-- @include store/made_key
-- @include engine/accept_call
-- @include store/now
-- @include engine/wake_worker
-- @include engine/tally
-- @include engine/outbox
local bag = carried_key(id)
if was_done or is_repeated and redis.call('EXISTS', bag, ended_key(id), unique_key(id)) > 0 then return 1 end
redis.call('HSET', jobs, id, body)
redis.call('HSET', bag, 'life', 'waits', 'open', 1, 'bad', 0, 'keep', fail_ms, 'takes', 'reply',
  'place', table.concat({ priority, '', weight, '', tenant }, '\n'))
if prefer ~= '' then redis.call('HSET', bag, 'prefer', prefer) end
if late ~= '' then redis.call('HSET', bag, 'else', late) end
if interim ~= '' then redis.call('HSET', bag, 'interim', interim) end
redis.call('ZADD', waiting, now, id)
post(id .. '.late', 'timeout 1 deadline\n>b0:' .. id .. queue .. '\n', now + timeout_ms)
if conversation ~= '' then
  redis.call('ZADD', made_key(conversation), now, id)
  redis.call('PEXPIRE', made_key(conversation), known_ms)
  redis.call('HSET', bag, 'conversation', known_ms .. ' ' .. conversation)
end
tally('enqueued', 1)
if redis.call('ZRANGE', errands, 0, 0)[1] == id .. '.late' then -- an idle worker has its alarm set for a later time, or for none
  local worker = wake()
  if worker then ring(worker, '') end
end
return 1
