--[[ Store members of a workflow that wait for nothing but its start, and have no time, tenant or name: most of a group.
Nothing is kept of them but their bodies, their edges and one outbox message, which cancels them if their maker dies.
KEYS  jobs       hash  bodies of living jobs
      waiting    zset  jobs that wait for others, since when
      waiters    hash  id -> edges to notify of its end
      errands    zset  outbox messages, by the time they are due
      letters    hash  their texts
      ended      -     prefix of records of finished jobs
      stats      hash  counters
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session, see engine/lua/push.lua
      keep_ms    int   how long the counters live without traffic
      gate_ms    int   they are cancelled after so long if they are not started
      queue      text  the queue, as edges name it
      priority   int   of all of them
      fail_ms    int   how long their records are kept if they are cancelled
                       then per job: id, body, edges
GIVES how many were stored ]]
-- @include engine/accept_call
if was_done then return 0 end
-- @include store/now
-- @include engine/tally
-- @include store/ended_key
-- @include engine/outbox
local bodies, edges, since, gated = {}, {}, {}, {}
local now_text = string.format('%d', now)
for i = 8, #ARGV, 3 do
  local id = ARGV[i]
  if not (is_repeated and (redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended_key(id)) == 1)) then
    local n = #bodies
    bodies[n + 1], bodies[n + 2] = id, ARGV[i + 1]
    edges[n + 1], edges[n + 2] = id, ARGV[i + 2]
    since[n + 1], since[n + 2] = now_text, id
    gated[#gated + 1] = '>c:' .. id .. queue
  end
end
if #gated == 0 then return 0 end
redis.call('HSET', jobs, unpack(bodies))
redis.call('HSET', waiters, unpack(edges))
redis.call('ZADD', waiting, unpack(since))
post(ARGV[8] .. '.members', 'cancelled 0 gate\n' .. table.concat(gated, ' ') .. '\n' .. priority .. ' ' .. fail_ms, now + gate_ms)
tally('enqueued', #gated)
return #gated
