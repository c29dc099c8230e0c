-- A call that makes jobs is carried out once, and never after its caller has given up, even if the network delivers it late:
-- see store/call_numbers.py. Comes before the first write.
local was_done, said_then = false, false -- an earlier try was carried out; its answer, if that was not the usual one
local is_repeated = false
do
  local key = sent .. ':' .. session
  local count = redis.call('INCR', key)
  if count ~= tonumber(number) or count == 1 then
    -- @include store/now
    local n, since, by, kept_ms, before = string.match(number, '^(%d+) (%d+) (%d+) (%d+)(.*)$')
    -- a second for clocks that drift apart
    if not n or count ~= tonumber(n) or now < since - 1000 or now > tonumber(by) then
      if count == 1 then redis.call('UNLINK', key) else redis.call('DECR', key) end
      return redis.error_reply('LATE ' .. string.format('%d', now))
    end
    if count == 1 then redis.call('PEXPIRE', key, kept_ms) end
    is_repeated = before ~= ''
    local FENCE = 1000000000000
    for name, tried in string.gmatch(before, '(%S+) (%d+)') do
      key = sent .. ':' .. name
      count = tonumber(redis.call('GET', key) or 0)
      if count % FENCE >= tonumber(tried) then
        was_done, said_then = true, redis.call('HGET', key .. ':answers', tried) or said_then
      elseif count < FENCE then -- that try has not arrived: it will be refused
        redis.call('INCRBY', key, FENCE)
        redis.call('PEXPIRE', key, kept_ms)
      end
    end
  end
end
