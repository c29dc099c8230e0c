--[[ An idle worker says that it still waits, and learns when it is needed next. Few commands, for it is said all day.
KEYS  jobs       hash  bodies of living jobs
      ready      zset  priority and fair tag
      running    zset  lease deadline
      scheduled  zset  due time * 1024 + priority
      parking    zset  groups in whose lines jobs stand, by when to look again
      errands    zset  letters and schedules, by the time they are due
      idle       zset  workers that wait, until when they are believed alive
      contact    string  when workers last reached the server
      rerouted   hash  jobs that wait for a worker of another build
      sought     hash  their targets
      offers     hash  what workers know
ARGV  worker     id    who waits
      lease_ms   int   how long its jobs are lent without a renewal
      idle_ms    int   how long it is believed to wait
GIVES now, when to ask again (0: never), 1 if it may go on waiting (0: it was called, or should have been),
      when the next errand is due (0: none) ]]
-- @include now
-- @include next
-- @include known
-- @include errand
redis.call('PEXPIRE', idle, idle_ms * 2) -- the first write: a server at its memory limit refuses ZADD unless one was made
local waits = redis.call('ZADD', idle, 'XX', 'CH', now + idle_ms, worker)
if waits == 0 and redis.call('ZSCORE', idle, worker) then waits = 1 end -- said twice in one millisecond
-- @include contact
local function is_needed() return redis.call('EXISTS', ready) == 1 or #lines_for(worker) > 0 end
local hold = note_contact(tonumber(lease_ms))
local errand_at = errand_first()
if redis.call('EXISTS', jobs, parking) == 0 then return { now, 0, waits, errand_at or 0 } end
if waits == 1 and redis.call('EXISTS', ready, rerouted) > 0 and is_needed() then
  -- Jobs wait although we are on the list: the call for them went to a worker that had died. Without this look, nobody
  -- would ask for them before the next push.
  redis.call('ZREM', idle, worker)
  waits = 0
end
return { now, sooner(due_first(), lease_first(hold), look_first()), waits, errand_at or 0 }
