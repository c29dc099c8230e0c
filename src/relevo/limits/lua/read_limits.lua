--[[ The limits of queue, tasks and tenants, with how many jobs run and wait under them.
KEYS  limits     hash  name -> its limit, see limits/lua/include/limit_text.lua
      holding    hash  '#' and the name -> how many of its jobs run
      ready      zset  priority and fair tag
      parked     -     prefix of the lines
ARGV                   the names
GIVES now; per name: its limit ('': it has none now), how many run, how many wait because of it, the default of its code ]]
-- @include store/parked_key
-- @include store/now
local reply = { now }
for i = 1, #ARGV do
  local name = ARGV[i]
  local line = parked_key(name)
  local waiting = redis.call('ZCARD', line)
  if waiting > 0 then -- released jobs that have not started are at its head, and also in `ready`
    for _, score in ipairs(redis.call('ZMSCORE', ready, unpack(redis.call('ZRANGE', line, 0, 99)))) do
      if score then waiting = waiting - 1 end
    end
  end
  reply[#reply + 1] = redis.call('HGET', limits, name) or ''
  reply[#reply + 1] = tonumber(redis.call('HGET', holding, '#' .. name) or 0) or 0
  reply[#reply + 1] = waiting
  reply[#reply + 1] = redis.call('HGET', limits, 'd:' .. name) or ''
end
return reply
