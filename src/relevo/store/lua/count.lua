--[[ How a queue stands, in one snapshot whose numbers add up.
KEYS  jobs ready scheduled running waiting done dead cancelled expired idle paused stats
      ended      -     prefix of records of finished jobs
ARGV  sweep      int   at most so many ended entries are checked per state
GIVES now, sizes (ready, scheduled, running, waiting, done, dead, cancelled, expired, jobs), idle workers, paused,
      next due time (0: none), counters as field, value, ... ]]
-- @include now
-- @include halt
for _, set in ipairs({ done, dead, cancelled, expired }) do
  local old = redis.call('ZRANGE', set, 0, sweep - 1)
  for _, id in ipairs(old) do
    if redis.call('EXISTS', ended .. ':' .. id) == 1 then break end
    redis.call('ZREM', set, id)
  end
end
local next_due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
return {
  now,
  { redis.call('ZCARD', ready), redis.call('ZCARD', scheduled), redis.call('ZCARD', running), redis.call('ZCARD', waiting), redis.call('ZCARD', done),
    redis.call('ZCARD', dead), redis.call('ZCARD', cancelled), redis.call('ZCARD', expired), redis.call('HLEN', jobs) },
  redis.call('ZCOUNT', idle, now, '+inf'),
  is_halted() and 1 or 0,
  next_due and math.floor(next_due / 1024) or 0,
  redis.call('HGETALL', stats),
}
