--[[ How queue, tasks and groups with limits stand.
KEYS  limits     hash  name -> its limit, see include/terms.lua
      holding    hash  '#' and the name -> how many of its jobs run
      ready      zset  priority and fair tag
      parked     -     prefix of the lines
ARGV                   the names
GIVES now; per name: its limit ('': it has none any more), how many run, how many wait because of it ]]
-- @include now
local said = { now }
for i = 1, #ARGV do
  local name = ARGV[i]
  local line = parked .. ':' .. name
  local waiting = redis.call('ZCARD', line)
  if waiting > 0 then -- those that were let go and have not started stand at its head, and are ready
    for _, score in ipairs(redis.call('ZMSCORE', ready, unpack(redis.call('ZRANGE', line, 0, 99)))) do
      if score then waiting = waiting - 1 end
    end
  end
  said[#said + 1] = redis.call('HGET', limits, name) or ''
  said[#said + 1] = tonumber(redis.call('HGET', holding, '#' .. name) or 0) or 0
  said[#said + 1] = waiting
end
return said
