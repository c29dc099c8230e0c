-- Whether the whole queue is paused. A pause may have an end, which needs nobody to come: after it, it is none.
local function is_halted()
  local ends = tonumber(string.match(redis.call('HGET', paused, '') or '', '^%d+$')) -- what is no number was not written by us
  return ends and (ends == 0 or ends > now and ends < 1e15)
end
