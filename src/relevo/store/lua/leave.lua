--[[ A worker stops waiting: nobody hands it a job any more. What was handed over before is given back to it to settle,
and if it was called for jobs that still wait, somebody else is called in its place.
KEYS  idle       zset  workers that wait
      paused     hash  workers that asked while the queue was paused
      ready      zset  priority and fair tag
      bell       -     prefix of the workers' bells
ARGV  worker     id    who leaves
GIVES the messages left on its bell ]]
-- @include now
-- @include wake
redis.call('ZREM', idle, worker)
redis.call('HDEL', paused, worker)
local left = redis.call('LRANGE', bell .. ':' .. worker, 0, -1)
redis.call('DEL', bell .. ':' .. worker)
if redis.call('EXISTS', ready) == 1 then
  local other = wake()
  if other then ring(other, '') end
end
return left
