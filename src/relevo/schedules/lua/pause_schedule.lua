--[[ Pause or resume a schedule.
KEYS  schedules ticks errands running idle bell
      pauses     hash  what is paused -> since when, until when, why and by whom
ARGV  name       text  the schedule
      pause      flag  1: pause, 0: resume
      due        int   its next tick: the next one, or the first after the end of the pause
      ends       int   when the pause ends by itself; 0: never
      note       json  why, and by whom; '': as before
GIVES 1 changed, 0 no change, -1 the schedule does not exist ]]
-- @include store/now
-- @include store/afford
-- @include engine/wake_worker
-- @include limits/note_pause
-- @include schedules/schedule_pause
if redis.call('HEXISTS', schedules, name) == 0 then return -1 end
local before = redis.call('HGET', ticks, 'paused:' .. name)
local was_suspended = is_suspended(before)
local function await_tick()
  redis.call('HSET', ticks, 'due:' .. name, due)
  redis.call('ZADD', errands, due, '@' .. name)
  local worker = wake() -- its alarm may be set for later
  if worker then ring(worker, '') end
end
if pause == '1' then
  local since = was_suspended and string.match(before, '^%d+') or string.format('%d', now)
  if note == '' then note = string.match(redis.call('HGET', pauses, 's:' .. name) or '', '^%d+ %d+ (.*)$') or '{}' end
  note_pause('s:' .. name, ends, note)
  redis.call('HSET', ticks, 'paused:' .. name, ends == '0' and since or since .. ' ' .. ends)
  if ends == '0' then
    redis.call('ZREM', errands, '@' .. name)
  else
    -- Its next tick is the first after the pause: when that comes, the pause has expired.
    await_tick()
  end
  return was_suspended and 0 or 1
end
redis.call('HDEL', pauses, 's:' .. name)
if redis.call('HDEL', ticks, 'paused:' .. name) == 0 then return 0 end
await_tick()
return was_suspended and 1 or 0
