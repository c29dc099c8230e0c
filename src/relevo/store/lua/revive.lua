--[[ Put an ended job back in the queue, once however often this is asked.
KEYS  jobs ready claims clock idle bell stats ended dead cancelled expired
ARGV  id         id    the job
      priority   int   its level
      group      text  its group, or ''
      weight     num   its group's weight
      body       json  its body, as its record keeps it
      keep_ms    int   how long the counters live without traffic
GIVES 1 revived, 0 it is not among the ended any more ]]
-- @include now
-- @include wake
-- @include place
-- @include tally
local found = redis.call('ZREM', dead, id) + redis.call('ZREM', cancelled, id) + redis.call('ZREM', expired, id)
if found == 0 or redis.call('DEL', ended .. ':' .. id) == 0 then return 0 end -- in this order: a result is not ours to remove
redis.call('HSET', jobs, id, body)
-- Its tokens were forgotten at its end, but not by those who hold one. Counting on from the time, in seconds so that it
-- fits in 32 bits, is above them all.
redis.call('HSET', claims, id, string.format('%d nobody 0', now / 1000))
redis.call('ZADD', ready, place(priority, group, weight), id)
keep_marks()
tally('revived', 1)
local worker = wake()
if worker then ring(worker, '') end
return 1
