--[[ The state of a queue, in one snapshot whose numbers add up.
KEYS  jobs ready scheduled running waiting done dead cancelled expired idle paused stats
      parked sought offers instances
      ended      -     prefix of records of finished jobs
GIVES now, sizes (ready, scheduled, running, waiting, done, dead, cancelled, expired, jobs), idle workers, paused,
      next due time (0: none), counters as field, value, ...,
      tasks unknown to all live workers, and how many jobs wait for one, as task, count, ... ]]
-- @include store/ended_key
-- @include store/parked_key
-- @include store/now
-- @include limits/queue_pause
-- @include engine/count_expired
-- @include engine/tenant
-- @include engine/unknown_tasks
local next_due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
return {
  now,
  { redis.call('ZCARD', ready), redis.call('ZCARD', scheduled), redis.call('ZCARD', running), redis.call('ZCARD', waiting),
    still_there(done), still_there(dead), still_there(cancelled), still_there(expired), redis.call('HLEN', jobs) },
  redis.call('ZCOUNT', idle, now, '+inf'),
  is_halted() and 1 or 0,
  next_due and math.floor(next_due / 1024) or 0,
  redis.call('HGETALL', stats),
  unknown_tasks(),
}
