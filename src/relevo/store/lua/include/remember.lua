-- Keep what a refused call was answered, for its repetition: see include/arrive.lua.
local function remember(said)
  local counter = sent .. ':' .. session
  local answers = counter .. ':answers'
  redis.call('HSET', answers, string.match(number, '^%d+'), said)
  redis.call('PEXPIRE', answers, math.max(1, redis.call('PTTL', counter)))
end
