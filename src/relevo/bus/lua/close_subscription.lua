--[[ Remove the jobs of an abandoned queue, without records: those that wait, and those whose lease has ended. Jobs that still
run are left to their workers.
KEYS  jobs ready scheduled running waiting claims story groups clock names waiters paused pauses limits holding parking lines breakers stats
      closed rerouted sought
      parked     -     prefix of the lines of limited names
      carried    -     prefix of what jobs carry with them
ARGV  since      int   when the subscription that ended was made
      most       int   jobs removed in one call
GIVES how many were removed, how many are left, and the counters if the queue is empty now ]]
-- @include store/carried_key
-- @include store/parked_key
-- @include store/now
-- @include store/afford
-- @include engine/tenant
-- @include limits/leave_line
-- @include limits/free_places
most = tonumber(most)
-- A later subscription of this queue got events: what is here belongs to it.
if (tonumber(redis.call('HGET', closed, 'open') or 0) or 0) > tonumber(since) then return { 0, 0, {} } end
redis.call('HSET', closed, 'shut', since) -- for late events of publishers that were frozen
redis.call('PEXPIRE', closed, 86400000)
local removed = 0
local function remove(set, ids)
  for _, id in ipairs(ids) do
    leave_line(id)
    redis.call('ZREM', set, id)
    free_places(id)
    for _, key in ipairs({ jobs, claims, story, groups, waiters }) do redis.call('HDEL', key, id) end
    redis.call('UNLINK', carried_key(id))
    removed = removed + 1
  end
end
for _, set in ipairs({ ready, scheduled, waiting }) do
  if removed < most then remove(set, redis.call('ZRANGE', set, 0, most - removed - 1)) end
end
if removed < most then remove(running, redis.call('ZRANGE', running, '-inf', now, 'BYSCORE', 'LIMIT', 0, most - removed)) end
local left = redis.call('HLEN', jobs)
if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end
local totals = {}
if left == 0 then
  totals = redis.call('HGETALL', stats)
  redis.call('DEL', names, paused, pauses, limits, parking, lines, breakers, stats) -- a later subscription starts anew
end
return { removed, left, totals }
