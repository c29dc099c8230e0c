--[[ A worker stops waiting, so no job is handed to it any more. Messages left on its bell are returned to it, to settle their
jobs, and another worker is woken: for jobs that this one was called for, or to set an alarm in place of this one's.
KEYS  idle       zset  workers that wait
      paused     hash  workers that asked while the queue was paused
      jobs       hash  bodies of living jobs
      parking    zset  names whose lines have jobs, by when to look again
      errands    zset  outbox messages and schedules, by the time they are due
      bell       -     prefix of the workers' bells
ARGV  worker     id    the one that leaves
GIVES the messages left on its bell ]]
-- @include store/now
-- @include engine/wake_worker
redis.call('ZREM', idle, worker)
redis.call('HDEL', paused, worker)
local left = redis.call('LRANGE', bell_key(worker), 0, -1)
redis.call('DEL', bell_key(worker))
if redis.call('EXISTS', jobs, parking, errands) > 0 then
  local other = wake()
  if other then ring(other, '') end
end
return left
