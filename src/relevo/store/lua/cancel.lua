--[[ End a job that has not started, or ask the worker that runs it to stop.
KEYS  jobs ready scheduled running claims story groups clock names waiters stats bell
      ended done cancelled
ARGV  id         id    the job
      record     json  its record, should it end here
      ttl        int   how long the record is kept, ms
      name       text  the name it holds, or ''
      done_max   int   unused for this state
      dead_max   int   records kept
      keep_ms    int   how long the counters live without traffic
GIVES 'cancelled', 'asked' (it runs; its worker was told), or 'unknown' ]]
-- @include now
-- @include afford
-- @include end
-- @include tally
if redis.call('HEXISTS', jobs, id) == 0 then return 'unknown' end
if redis.call('ZSCORE', running, id) then
  local claim = redis.call('HGET', claims, id)
  if string.sub(claim, -2) ~= ' c' then redis.call('HSET', claims, id, claim .. ' c') end -- survives the worker's death
  local list = bell .. ':' .. string.match(claim, '^%d+ (%S+)')
  redis.call('RPUSH', list, 'c' .. id)
  redis.call('PEXPIRE', list, 60000)
  return 'asked'
end
redis.call('ZREM', ready, id)
if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end -- nothing is queued: the virtual times start anew
redis.call('ZREM', scheduled, id)
redis.call('HDEL', jobs, id)
local token = string.match(redis.call('HGET', claims, id) or '0', '^%d+')
redis.call('HDEL', claims, id)
redis.call('HDEL', story, id)
redis.call('HDEL', groups, id)
release(name, id)
file(cancelled, id, record, tonumber(ttl), token)
tally('cancelled', 1)
return 'cancelled'
