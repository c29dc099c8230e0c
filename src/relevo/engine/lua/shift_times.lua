--[[ The server's clock was set back: moves due times back by the same step, so that waiting times stay as they were. Called
until nothing is left to move; workers that report the same step later get 0.
KEYS  set_back   hash  the current step: step, cursor
      scheduled  zset  when it is due * 1024 + priority
      running    zset  lease deadline
      idle       zset  workers that wait, until when they count as alive
      errands    zset  when an outbox message or a schedule is due
      ticks      hash  due:name -> the next tick of a schedule
ARGV  step_ms    int   by how much
      most       int   jobs moved per call
      lease_ms   int   a lease of the worker that reports it
      idle_ms    int   the longest time for which an idle worker counts as alive
                       then per schedule that is planned anew: name, its next tick until now, its new next tick
GIVES whether there is more to move ]]
-- @include store/now
step_ms, most = tonumber(step_ms), tonumber(most)
local known = redis.call('HMGET', set_back, 'step', 'cursor')
local step, cursor = tonumber(known[1]), known[2]
if step and math.abs(step - step_ms) < 2000 then
  if cursor == '' then return 0 end
else
  step, cursor = step_ms, '-inf'
  -- Live workers renew their leases and their idle registrations; those of dead ones must not last longer.
  local moved = {}
  local held = redis.call('ZRANGE', running, now + step / 2, '+inf', 'BYSCORE', 'LIMIT', 0, 1000, 'WITHSCORES')
  for i = 1, #held, 2 do
    moved[i], moved[i + 1] = string.format('%d', math.min(held[i + 1], math.max(now + lease_ms, held[i + 1] - step))), held[i]
  end
  if #moved > 0 then redis.call('ZADD', running, unpack(moved)) end
  redis.call('ZREMRANGEBYSCORE', idle, now + idle_ms + 1000, '+inf')
  local timed = redis.call('ZRANGE', errands, now + step / 2, '+inf', 'BYSCORE', 'LIMIT', 0, 1000, 'WITHSCORES')
  for i = 1, #timed, 2 do
    if string.sub(timed[i], 1, 1) ~= '@' then
      redis.call('ZADD', errands, string.format('%d', timed[i + 1] - step), timed[i])
    end
  end
end
for i = 5, #ARGV, 3 do
  if redis.call('HGET', ticks, 'due:' .. ARGV[i]) == ARGV[i + 1] then
    redis.call('HSET', ticks, 'due:' .. ARGV[i], ARGV[i + 2])
    redis.call('ZADD', errands, ARGV[i + 2], '@' .. ARGV[i])
  end
end
-- In order of time: what was moved lies below the cursor and is not read again.
local rows = redis.call('ZRANGE', scheduled, cursor, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
local moved = {}
for i = 1, #rows, 2 do
  moved[i], moved[i + 1] = string.format('%d', rows[i + 1] - step * 1024), rows[i]
  cursor = rows[i + 1]
end
for i = 1, #moved, 1000 do redis.call('ZADD', scheduled, unpack(moved, i, math.min(i + 999, #moved))) end
if #rows < most * 2 then cursor = '' end
redis.call('HSET', set_back, 'step', string.format('%d', step), 'cursor', cursor)
redis.call('PEXPIRE', set_back, 180000)
return cursor ~= '' and 1 or 0
