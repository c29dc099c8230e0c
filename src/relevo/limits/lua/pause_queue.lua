--[[ Pause or resume handing out jobs.
KEYS  idle       zset  workers that wait
      paused     hash  exists while the queue is paused: when that ends (0: never), and the workers that asked for jobs
      pauses     hash  what is paused -> since when, until when, why and by whom
      running    zset  lease deadline
      bell       -     prefix of the workers' bells
ARGV  pause      flag  1: pause, 0: resume
      ends       int   when the pause ends by itself; 0: never
      note       json  why, and by whom
GIVES 1 if that changed something ]]
-- @include store/now
-- @include store/afford
-- @include engine/wake_worker
-- @include limits/queue_pause
-- @include limits/note_pause
local was_halted = is_halted()
if pause == '1' then
  redis.call('HSET', paused, '', ends)
  note_pause('q:', ends, note)
  -- With an empty `idle`, a push hands nothing over: it need not check for a pause.
  for _, worker in ipairs(redis.call('ZRANGE', idle, 0, -1)) do redis.call('HSET', paused, worker, now) end
  redis.call('DEL', idle)
  if ends ~= '0' then -- wake all workers: their alarms must be set to the end of this pause
    for _, worker in ipairs(redis.call('HKEYS', paused)) do
      if worker ~= '' then ring(worker, '') end
    end
  end
  return was_halted and 0 or 1
end
-- @include limits/resume_queue
return was_halted and 1 or 0
