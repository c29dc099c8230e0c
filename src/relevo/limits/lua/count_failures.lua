--[[ Count failed attempts of a task with a circuit breaker. Too many in a window open it: none of its jobs start until it has
rested, then one at a time as a probe, until one succeeds (see limits/lua/include/limits.lua). A failed probe opens it again, for longer.
Without a job to probe it closes after a while.
KEYS  limits     hash  name -> its limit, see limits/lua/include/limit_text.lua
      breakers   hash  task -> when its last attempts failed
      pauses     hash  what is paused -> since when, until when, why and by whom
      parking    zset  names whose lines have jobs, by when to look again
      running    zset  lease deadline
ARGV  name       text  the task, as limits name it
      failed     int   attempts that failed just now
      most       int   attempts that open it
      window_ms  int   within so long
      rest_ms    int   how long it rests at first
      longest_ms  int  how long at the most
      note       json  what failed, for display
GIVES when it lets a probe start, if it has opened now; else 0 ]]
-- @include store/now
-- @include store/afford
-- @include limits/limit_text
-- @include limits/note_pause
local concurrency, rate, burst, paused_for, open = terms_of(redis.call('HGET', limits, name), name)
local probe_at, trips = string.match(open, '^ (%d+)/(%d+)')
if probe_at then
  if tonumber(probe_at) > now then return 0 end -- they started before it opened
  trips = trips + 1
else
  local times = {}
  for at in string.gmatch(redis.call('HGET', breakers, name) or '', '%d+') do
    if tonumber(at) > now - window_ms then times[#times + 1] = at end
  end
  for _ = 1, math.min(failed, most) do times[#times + 1] = string.format('%d', now) end
  if #times < tonumber(most) then
    redis.call('HSET', breakers, name, table.concat(times, ' '))
    if redis.call('PTTL', breakers) < tonumber(window_ms) then redis.call('PEXPIRE', breakers, window_ms) end
    return 0
  end
  redis.call('HDEL', breakers, name)
  trips = 0
end
local rests = math.min(rest_ms * 2 ^ math.min(trips, 30), tonumber(longest_ms))
probe_at = string.format('%d', now + rests)
keep_terms(name, concurrency, rate, burst, paused_for, ' ' .. probe_at .. '/' .. string.format('%d', trips) .. '/' .. longest_ms)
note_pause('b:' .. string.sub(name, 3), '0', note)
redis.call('ZADD', parking, 'LT', probe_at, name) -- also without a line, so that it is closed if no job comes
return tonumber(probe_at)
