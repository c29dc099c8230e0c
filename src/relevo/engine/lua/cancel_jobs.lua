--[[ End jobs that have not started, or ask the workers that run them to stop.
KEYS  jobs ready scheduled running waiting carried claims story groups clock names waiters stats bell errands letters
      parking parked limits lines ended done cancelled notes rerouted sought
ARGV  done_max   int   unused for this state
      dead_max   int   records kept
      keep_ms    int   how long the counters live without traffic
                       then per job: id, ttl of its record in ms, the name it holds or '', the signature of its end or ''
GIVES per job 'cancelled', 'asked' (it runs; its worker was called), or 'unknown'; last 1 if there is something to relay ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/parked_key
-- @include store/alike_key
-- @include store/bell_key
-- @include store/now
-- @include store/afford
-- @include engine/end_job
-- @include engine/cancelled_record
-- @include engine/tally
-- @include engine/outbox_due
-- @include engine/tenant
-- @include engine/forget_job
local function cancel(id, ttl, name, signature)
  local body = redis.call('HGET', jobs, id)
  if not body then return 'unknown' end
  local claim = redis.call('HGET', claims, id) or '0 none 0'
  if redis.call('ZSCORE', running, id) then
    if string.sub(claim, -2) ~= ' c' then redis.call('HSET', claims, id, claim .. ' c') end -- survives the worker's death
    local holder = string.match(claim, '^%d+ (%S+)')
    if holder then
      redis.call('RPUSH', bell_key(holder), 'c' .. id)
      redis.call('PEXPIRE', bell_key(holder), 60000)
    end
    return 'asked'
  end
  local from = redis.call('ZREM', ready, id) == 1 and 'ready' or redis.call('ZREM', scheduled, id) == 1 and 'scheduled'
    or redis.call('ZREM', waiting, id) == 1 and 'waiting' or ''
  local past = redis.call('HGET', story, id) or ''
  forget(id, name)
  redis.call('PEXPIRE', carried_key(id), ttl)
  file(cancelled, 'cancelled', id, cancelled_record(body, past, from, 'cancelled', '', signature), tonumber(ttl), string.match(claim, '^%d+') or '0')
  return 'cancelled'
end
local answers, ended_now = {}, 0
for i = 4, #ARGV, 4 do
  answers[#answers + 1] = cancel(ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3])
  if answers[#answers] == 'cancelled' then ended_now = ended_now + 1 end
end
if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end -- nothing is queued: the virtual times start anew
if ended_now > 0 then tally('cancelled', ended_now) end
answers[#answers + 1] = errand_is_due()
return answers
