-- An index outlives its records, each of which has its own TTL. Its first entries without one are removed when others are
-- added, and by workers once a minute (health/sample_counters.lua); read-only callers count without them (see engine/include/count_expired.lua).
local tidied = {} -- once per call is enough
local function tidy(index, most)
  if tidied[index] then return end
  tidied[index] = true
  local gone = 0
  for _, id in ipairs(redis.call('ZRANGE', index, 0, most - 1)) do
    if redis.call('EXISTS', ended_key(id)) == 1 then break end
    gone = gone + 1
  end
  if gone > 0 then redis.call('ZREMRANGEBYRANK', index, 0, gone - 1) end
end
