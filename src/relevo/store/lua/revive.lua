--[[ Put an ended job back in the queue, once however often this is asked.
KEYS  jobs ready waiting carried claims clock names waiters idle bell stats errands letters ended dead cancelled expired
      alike kinds
ARGV  id         id    the job
      priority   int   its level
      group      text  its group, or ''
      weight     num   its group's weight
      body       json  its body, as its record keeps it
      name       text  the name it had, or '': it takes it again if nobody else has
      keep_ms    int   how long the counters live without traffic
GIVES 1 revived, 2 revived and there is something to relay, 0 it is not among the ended any more, -1 a job it depends on
      has failed, so that it could not run; and the number under which its revival is told ]]
-- @include now
-- @include wake
-- @include place
-- @include tally
-- @include post
-- @include revival
-- @include alike
local bag = carried .. ':' .. id
local known = redis.call('HMGET', bag, 'life', 'open', 'bad')
if known[1] and tonumber(known[3]) > 0 and redis.call('EXISTS', ended .. ':' .. id) == 1 then return { -1, 0 } end
local found = redis.call('ZREM', dead, id) + redis.call('ZREM', cancelled, id) + redis.call('ZREM', expired, id)
local record = found > 0 and redis.call('GET', ended .. ':' .. id) -- a result is not ours to remove
if not record then return { 0, 0 } end
leave_alike(id, record)
local number = bring_back(id, record, body, name)
redis.call('PERSIST', bag)
if known[1] and known[1] ~= 'freed' and tonumber(known[2]) > 0 then
  redis.call('HSET', bag, 'life', 'waits') -- as before it was cancelled: it runs when its parents let it
  redis.call('ZADD', waiting, now, id)
else
  if known[1] then redis.call('HSET', bag, 'life', 'freed') end
  redis.call('ZADD', ready, place(priority, group, weight), id)
end
keep_marks()
tally('revived', 1)
local worker = wake()
if worker then ring(worker, '') end
return { redis.call('HEXISTS', waiters, id) == 1 and 2 or 1, number }
