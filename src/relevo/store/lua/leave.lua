--[[ A worker stops waiting: nobody hands it a job any more. What was handed over before is given back to it to settle,
and somebody else is called in its place: for jobs that it was called for, or to set an alarm as it had set one, maybe alone.
KEYS  idle       zset  workers that wait
      paused     hash  workers that asked while the queue was paused
      jobs       hash  bodies of living jobs
      parking    zset  names in whose lines jobs stand, by when to look again
      errands    zset  letters and schedules, by the time they are due
      bell       -     prefix of the workers' bells
ARGV  worker     id    who leaves
GIVES the messages left on its bell ]]
-- @include now
-- @include wake
redis.call('ZREM', idle, worker)
redis.call('HDEL', paused, worker)
local left = redis.call('LRANGE', bell .. ':' .. worker, 0, -1)
redis.call('DEL', bell .. ':' .. worker)
if redis.call('EXISTS', jobs, parking, errands) > 0 then
  local other = wake()
  if other then ring(other, '') end
end
return left
