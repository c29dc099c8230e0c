--[[ Put an ended job back in the queue, once however often this is asked.
KEYS  jobs ready clock idle bell stats ended dead cancelled expired
ARGV  id         id    the job
      priority   int   its level
      group      text  its group, or ''
      weight     num   its group's weight
      body       json  its body, as its record keeps it
GIVES 1 revived, 0 it is not among the ended any more ]]
-- @include now
-- @include wake
-- @include place
local found = redis.call('ZREM', dead, id) + redis.call('ZREM', cancelled, id) + redis.call('ZREM', expired, id)
if redis.call('DEL', ended .. ':' .. id) == 0 or found == 0 then return 0 end
redis.call('HSET', jobs, id, body)
redis.call('ZADD', ready, place(priority, group, weight), id)
keep_marks()
redis.call('HINCRBY', stats, 'revived', 1)
local worker = wake()
if worker then ring(worker, '') end
return 1
