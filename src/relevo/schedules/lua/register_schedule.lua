--[[ Register a schedule or change it. Idempotent.
KEYS  schedules ticks errands idle bell
ARGV  name       text  the schedule
      text       json  its record
      times      text  when it fires, as text: if unchanged, the next tick stays
      due        int   its next tick, if it is new or its times changed
      code       text  digest of the schedule as defined in code or settings; '': changed at run time, which takes precedence
GIVES 'new', 'changed' or 'same' ]]
-- @include store/now
-- @include engine/wake_worker
-- @include schedules/schedule_pause
local before = redis.call('HMGET', ticks, 'times:' .. name, 'due:' .. name, 'code:' .. name, 'paused:' .. name)
local old, is_paused = redis.call('HGET', schedules, name), is_suspended(before[4])
if code ~= '' then
  redis.call('HSET', ticks, 'seen:' .. name, string.format('%d', now))
  -- A change made at run time stays until the code itself changes.
  if old and before[3] == code then
    -- The server's clock was set back by more than ten minutes: a tick must not wait for the time it showed before.
    if not is_paused and before[1] == times and tonumber(before[2] or 0) > tonumber(due) + 600000 then
      redis.call('HSET', ticks, 'due:' .. name, due)
      redis.call('ZADD', errands, due, '@' .. name)
    end
    return 'same'
  end
  redis.call('HSET', ticks, 'code:' .. name, code)
end
if old == text then return 'same' end
redis.call('HSET', schedules, name, text)
if not old or before[1] ~= times or not before[2] then
  redis.call('HSET', ticks, 'times:' .. name, times, 'due:' .. name, due)
  if not is_paused then
    redis.call('ZADD', errands, due, '@' .. name)
    -- It may be the next thing due: an idle worker must reset its alarm.
    if redis.call('ZRANGE', errands, 0, 0)[1] == '@' .. name then
      local worker = wake()
      if worker then ring(worker, '') end
    end
  end
end
return old and 'changed' or 'new'
