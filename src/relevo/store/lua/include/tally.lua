-- Counters live until `keep_ms` after the last traffic. Whatever counts may have brought the key to life, so it also ends it.
local function tally(field, n)
  if redis.call('HINCRBY', stats, field, n) == n then redis.call('PEXPIRE', stats, keep_ms) end
end
