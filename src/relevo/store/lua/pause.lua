--[[ Stop or go on handing out jobs.
KEYS  idle       zset  workers that wait
      paused     hash  there while the queue is paused: who asked meanwhile
      running    zset  lease deadline
      bell       -     prefix of the workers' bells
ARGV  pause      flag  1: pause, 0: resume
GIVES 1 when that changed something ]]
-- @include now
-- @include afford
-- @include wake
if pause == '1' then
  local fresh = redis.call('HSET', paused, '', now)
  -- With nobody on the list, a push hands nothing over: it need not ask whether the queue is paused.
  for _, worker in ipairs(redis.call('ZRANGE', idle, 0, -1)) do redis.call('HSET', paused, worker, now) end
  redis.call('DEL', idle)
  return fresh
end
local waiting = redis.call('HKEYS', paused)
redis.call('DEL', paused)
for _, worker in ipairs(waiting) do
  if worker ~= '' then ring(worker, '') end
end
return #waiting > 0 and 1 or 0
