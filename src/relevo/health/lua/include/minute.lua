-- The counters at the first call of every minute, for an hour: rates are differences, and counting itself costs nothing extra.
local COUNTED = { 'enqueued', 'done', 'retry', 'dead', 'cancelled', 'expired', 'lost', 'revived', 'dropped' } -- as in health/vitals.py
local function keep_minute() -- true for the first call in this minute
  local minute = string.format('%d', math.floor(now / 60000))
  if redis.call('HEXISTS', minutes, minute) == 1 then return false end
  local counts = redis.call('HMGET', stats, unpack(COUNTED))
  for i = 1, #COUNTED do counts[i] = counts[i] or '0' end
  redis.call('HDEL', minutes, '') -- as in store/include/afford.lua
  redis.call('HSET', minutes, minute, string.format('%d', now) .. ' ' .. table.concat(counts, ' '))
  redis.call('PEXPIRE', minutes, hour_ms)
  if redis.call('HLEN', minutes) > 62 then
    for _, old in ipairs(redis.call('HKEYS', minutes)) do
      local number = tonumber(old)
      if not number or number < minute - 61 or number > minute + 1 then redis.call('HDEL', minutes, old) end
    end
  end
  return true
end
