--[[ Remove the jobs of a queue that nobody serves any more, without records: those that wait, and those whose worker fell
silent. What still runs is left to its worker.
KEYS  jobs ready scheduled running waiting claims story groups clock names waiters paused pauses limits holding parking lines breakers stats
      closed rerouted sought
      parked     -     prefix of the lines of what has a limit
      carried    -     prefix of what jobs carry with them
ARGV  since      int   since when the one that ended was subscribed
      most       int   jobs removed in one call
GIVES how many were removed, how many are left, and of a queue that is empty now its counters ]]
-- @include now
-- @include afford
-- @include group
-- @include line
-- @include places
most = tonumber(most)
-- Somebody subscribed again and got something: what is here is that one's now.
if (tonumber(redis.call('HGET', closed, 'open') or 0) or 0) > tonumber(since) then return { 0, 0, {} } end
redis.call('HSET', closed, 'shut', since) -- for events of publishers that stood still meanwhile
redis.call('PEXPIRE', closed, 86400000)
local removed = 0
local function remove(set, ids)
  for _, id in ipairs(ids) do
    leave_line(id)
    redis.call('ZREM', set, id)
    free_places(id)
    for _, key in ipairs({ jobs, claims, story, groups, waiters }) do redis.call('HDEL', key, id) end
    redis.call('UNLINK', carried .. ':' .. id)
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
  redis.call('DEL', names, paused, pauses, limits, parking, lines, breakers, stats) -- who comes later begins anew
end
return { removed, left, totals }
