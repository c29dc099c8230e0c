--[[ Queue a report for a callback that still waits for the end: it comes before the reply, or not at all.
KEYS  jobs ready scheduled waiting carried groups clock idle bell stats
ARGV  keep_ms    int   how long the counters live without traffic
      callback   id    the callback
      id         id    the job of the report
      body       json  of that job
GIVES 1, or 0 if the callback has been settled (or the report is there already) ]]
-- @include now
-- @include wake
-- @include place
-- @include put
-- @include tally
local place_of = redis.call('HGET', carried .. ':' .. callback, 'place')
if not place_of or not redis.call('ZSCORE', waiting, callback) or redis.call('HEXISTS', jobs, id) == 1 then return 0 end
local priority, weight, group = string.match(place_of, '^(%d+)\n.-\n(.-)\n.-\n(.*)$')
redis.call('HSET', jobs, id, body)
put(id, priority, '', group, weight)
keep_marks()
tally('enqueued', 1)
local worker = wake()
if worker then ring(worker, '') end
return 1
