--[[ Move jobs that are due to those that are ready, in the order in which they are due, as each turn of a worker does.
KEYS  ready scheduled groups clock idle bell parked rerouted sought
ARGV  most       int   of them
GIVES how many ]]
-- @include store/parked_key
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/rerouted
local has_rerouted = redis.call('EXISTS', rerouted) == 1
local head = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
if not head or tonumber(head) >= (now + 1) * 1024 then return 0 end
-- @include engine/promote_due
keep_marks()
local worker = wake()
if worker then ring(worker, '') end
return #ids
