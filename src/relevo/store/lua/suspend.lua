--[[ Pause or resume a schedule.
KEYS  schedules ticks errands idle bell
ARGV  name       text  the schedule
      pause      flag  1: pause, 0: resume
      due        int   resuming: the tick it waits for then
GIVES 1 changed, 0 it was so already, -1 there is none ]]
-- @include now
-- @include wake
if redis.call('HEXISTS', schedules, name) == 0 then return -1 end
if pause == '1' then
  redis.call('ZREM', errands, '@' .. name)
  return redis.call('HSETNX', ticks, 'paused:' .. name, string.format('%d', now))
end
if redis.call('HDEL', ticks, 'paused:' .. name) == 0 then return 0 end
redis.call('HSET', ticks, 'due:' .. name, due)
redis.call('ZADD', errands, due, '@' .. name)
local worker = wake()
if worker then ring(worker, '') end
return 1
