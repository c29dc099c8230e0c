-- Whether the whole queue is paused. A pause may have an end, which needs nobody to come: after it, it is none.
local function is_halted()
  local ends = redis.call('HGET', paused, '')
  return ends and (tonumber(ends) == 0 or tonumber(ends) > now)
end
