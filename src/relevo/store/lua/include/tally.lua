-- Counters live until `keep_ms` after the last traffic. Whatever counts may have brought the key to life, so it also ends it.
local function tally(field, n)
  redis.call('HINCRBY', stats, field, n)
  redis.call('PEXPIRE', stats, keep_ms)
end
