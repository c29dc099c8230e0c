--[[ Put an ended job back in the queue. Idempotent.
KEYS  jobs ready waiting carried claims clock names waiters idle bell stats errands letters ended dead cancelled expired
      alike kinds
ARGV  id         id    the job
      priority   int   its level
      tenant     text  its tenant, or ''
      weight     num   its tenant's weight
      body       json  its body, as its record keeps it
      name       text  the name it had, or ''; not taken if another job has it
      keep_ms    int   how long the counters live without traffic
      ended_ms   int   when it ended, as the caller's record has it: a late request finds another time; 0: ignored
      died_ms    int   of a dead letter listed before: its score there; '': ignored
      again      flag  1: the client lost the reply to this very call and repeats it
GIVES 1 revived, 2 revived and there is something to relay, 0 it is not among the ended any more, or died again since it
      was listed, -1 a job it depends on has failed, so that it could not run; and the number of its revival ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/alike_key
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/tally
-- @include engine/outbox
-- @include engine/revival
-- @include dead/error_groups
local function answer(number) return { redis.call('HEXISTS', waiters, id) == 1 and 2 or 1, number } end
if again == '1' then
  -- It is alive, or ended at another time: the call whose reply was lost revived it, and that counts once.
  local claim, record = redis.call('HGET', claims, id), redis.call('GET', ended_key(id))
  local token = claim and redis.call('HEXISTS', jobs, id) == 1 and string.match(claim, '^%d+')
  if record and (string.match(record, '"ended_ms":(%d+)') or '0') ~= ended_ms then
    token = string.match(record, '^{"token":(%d+)') or 1
  end
  if token then return answer(tonumber(token) * 2 - 1) end
end
-- A slow replay must not revive a dead letter again that was revived by another call, and died again or was cancelled.
if died_ms ~= '' and tonumber(redis.call('ZSCORE', dead, id) or 0) ~= tonumber(died_ms) then return { 0, 0 } end
local bag = carried_key(id)
local known = redis.call('HMGET', bag, 'life', 'open', 'bad')
if known[1] and tonumber(known[3]) > 0 and redis.call('EXISTS', ended_key(id)) == 1 then return { -1, 0 } end
local record = redis.call('GET', ended_key(id))
if not record then return { 0, 0 } end
if ended_ms ~= '0' and (string.match(record, '"ended_ms":(%d+)') or '0') ~= ended_ms then return { 0, 0 } end
local found = redis.call('ZREM', dead, id) + redis.call('ZREM', cancelled, id) + redis.call('ZREM', expired, id)
if found == 0 then return { 0, 0 } end -- results are not revived
leave_alike(id, record)
local number = bring_back(id, record, body, name)
redis.call('PERSIST', bag)
if known[1] and known[1] ~= 'freed' and tonumber(known[2]) > 0 then
  redis.call('HSET', bag, 'life', 'waits') -- as before it was cancelled: it waits for its parents
  redis.call('ZADD', waiting, now, id)
else
  if known[1] then redis.call('HSET', bag, 'life', 'freed') end
  redis.call('ZADD', ready, place(priority, tenant, weight), id)
end
keep_marks()
tally('revived', 1)
local worker = wake()
if worker then ring(worker, '') end
return answer(number)
