-- Keep the answer to a refused call for its repetition: see engine/lua/include/accept_call.lua.
local function remember(answer)
  local counter = sent .. ':' .. session
  local answers = counter .. ':answers'
  redis.call('HSET', answers, string.match(number, '^%d+'), answer)
  redis.call('PEXPIRE', answers, math.max(1, redis.call('PTTL', counter)))
end
