--[[ Say how many jobs of a group may run at once and how fast they may start, take that back, stop the group, or let it go
on. All of it counts from the next turn of any worker; what runs goes on.
KEYS  limits     hash  group -> its limit, see include/terms.lua
      buckets    hash  group -> when its bucket is full, in microseconds
      parking    zset  groups in whose lines jobs stand, by when to look again
      parked     -     prefix of these lines
      running    zset  lease deadline
      idle       zset  workers that wait
      bell       -     prefix of the workers' bells
ARGV  name       text  the group, as limits name it: 'g:acme'
      does       word  limit, unlimit, pause or resume
      terms      text  of a limit: 'concurrency rate burst'
GIVES 1 when that changed something ]]
-- @include now
-- @include afford
-- @include wake
-- @include terms
local before = redis.call('HGET', limits, name)
local concurrency, rate, burst, is_paused = terms_of(before)
if does == 'limit' then concurrency, rate, burst = string.match(terms, '^(%S+) (%S+) (%S+)$')
elseif does == 'unlimit' then concurrency, rate, burst = '-', '-', '-'
else is_paused = does == 'pause' and '1' or '0' end
local after = concurrency .. ' ' .. rate .. ' ' .. burst .. ' ' .. is_paused
if after == (before or NO_LIMIT) then return 0 end
if after == NO_LIMIT then redis.call('HDEL', limits, name) else redis.call('HSET', limits, name, after) end
local full_at = tonumber(redis.call('HGET', buckets, name))
if full_at then
  -- A bucket that was filled once a day must not keep one waiting that is filled every second.
  local latest = rate ~= '-' and now * 1000 + burst * every_of(rate) or 0
  if latest == 0 then redis.call('HDEL', buckets, name)
  elseif latest < full_at then redis.call('HSET', buckets, name, string.format('%.0f', latest)) end
end
if redis.call('EXISTS', parked .. ':' .. name) == 1 then
  redis.call('ZADD', parking, now, name)
  local worker = wake()
  if worker then ring(worker, '') end
end
return 1
