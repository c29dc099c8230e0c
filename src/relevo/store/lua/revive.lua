--[[ Put an ended job back in the queue, once however often this is asked.
KEYS  jobs ready claims clock names idle bell stats ended dead cancelled expired
ARGV  id         id    the job
      priority   int   its level
      group      text  its group, or ''
      weight     num   its group's weight
      body       json  its body, as its record keeps it
      name       text  the name it had, or '': it takes it again if nobody else has
      keep_ms    int   how long the counters live without traffic
GIVES 1 revived, 0 it is not among the ended any more ]]
-- @include now
-- @include wake
-- @include place
-- @include tally
local found = redis.call('ZREM', dead, id) + redis.call('ZREM', cancelled, id) + redis.call('ZREM', expired, id)
local record = found > 0 and redis.call('GET', ended .. ':' .. id) -- a result is not ours to remove
if not record then return 0 end
redis.call('DEL', ended .. ':' .. id)
redis.call('HSET', jobs, id, body)
if name ~= '' then redis.call('HSETNX', names, name, id) end
-- Tokens go on from the last life: an old holder's word must not count in this one.
local token = string.match(record, '^{"token":(%d+),') or '0'
if token ~= '0' then redis.call('HSET', claims, id, token .. ' nobody 0') end
redis.call('ZADD', ready, place(priority, group, weight), id)
keep_marks()
tally('revived', 1)
local worker = wake()
if worker then ring(worker, '') end
return 1
