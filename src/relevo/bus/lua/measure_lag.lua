--[[ How far behind a queue is: how many jobs wait to be run, and the oldest of them, by the ids, which contain their time.
Looks where the oldest must be if each level has one tenant: first of all, first of the level that runs last, first of those
that are scheduled, or held back by a limit. With many tenants it may miss some.
KEYS  ready scheduled waiting
ARGV  most       int   how many entries are looked at in each place
GIVES now, how many wait, the oldest ('': none) ]]
-- @include store/now
local LEVEL = 8796093022208 -- as in engine/include/fair_tags.lua
local oldest = ''
local function look(ids)
  for _, id in ipairs(ids) do if oldest == '' or id < oldest then oldest = id end end
end
for _, set in ipairs({ ready, scheduled, waiting }) do look(redis.call('ZRANGE', set, 0, most - 1)) end
local last = redis.call('ZRANGE', ready, -1, -1, 'WITHSCORES')[2]
if last then
  local level = string.format('%.0f', math.floor(last / LEVEL) * LEVEL)
  look(redis.call('ZRANGE', ready, level, '+inf', 'BYSCORE', 'LIMIT', 0, most))
end
return { now, redis.call('ZCARD', ready) + redis.call('ZCARD', scheduled) + redis.call('ZCARD', waiting), oldest }
