--[[ An idle worker refreshes its registration, and learns when it is needed next. Few commands, since this runs constantly.
KEYS  jobs       hash  bodies of living jobs
      ready      zset  priority and fair tag
      running    zset  lease deadline
      scheduled  zset  due time * 1024 + priority
      parking    zset  names whose lines have jobs, by when to look again
      errands    zset  outbox messages and schedules, by the time they are due
      idle       zset  workers that wait, until when they count as alive
      contact    string  when workers last reached the server
      rerouted   hash  jobs that wait for a worker of another build
      sought     hash  their targets
      offers     hash  what workers offer
ARGV  worker     id    the caller
      lease_ms   int   lease of its jobs
      idle_ms    int   how long its registration is valid
GIVES now, when to ask again (0: never), 1 if it may go on waiting (0: it was called, or should have been),
      when the next entry of the outbox is due (0: none) ]]
-- @include store/now
-- @include engine/next_due
-- @include engine/offers
-- @include engine/outbox_due
redis.call('PEXPIRE', idle, idle_ms * 2) -- the first write: a server at its memory limit would refuse ZADD as the first
local waits = redis.call('ZADD', idle, 'XX', 'CH', now + idle_ms, worker)
if waits == 0 and redis.call('ZSCORE', idle, worker) then waits = 1 end -- called twice in one millisecond
-- @include engine/contact
local function is_needed() return redis.call('EXISTS', ready) == 1 or #lines_for(worker) > 0 end
local hold = note_contact(tonumber(lease_ms))
local errand_at = errand_first()
if redis.call('EXISTS', jobs, parking) == 0 then return { now, 0, waits, errand_at or 0 } end
if waits == 1 and redis.call('EXISTS', ready, rerouted) > 0 and is_needed() then
  -- Jobs are ready although idle workers are registered: the call for them went to a worker that had died. Without this
  -- check they would wait for the next push.
  redis.call('ZREM', idle, worker)
  waits = 0
end
return { now, sooner(due_first(), lease_first(hold), look_first()), waits, errand_at or 0 }
