-- Counters expire `keep_ms` after the last traffic. HINCRBY may have created the key, so each count sets the TTL.
local function tally(field, n)
  redis.call('HINCRBY', stats, field, n)
  redis.call('PEXPIRE', stats, keep_ms)
end
