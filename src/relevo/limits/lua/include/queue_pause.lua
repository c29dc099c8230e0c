-- Whether the whole queue is paused. Pauses may expire by themselves.
local function is_halted()
  local ends = tonumber(string.match(redis.call('HGET', paused, '') or '', '^%d+$')) -- anything else was not written by relevo
  return ends and (ends == 0 or ends > now and ends < 1e15)
end
