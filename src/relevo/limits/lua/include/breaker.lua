-- Whether the breaker of a task ('t:shop.charge') holds jobs back. One that waits for a probe and has no parked job does not:
-- the next job is the probe.
local function is_open(task)
  local probe_at = string.match(redis.call('HGET', limits, task) or '', ' (%d+)/%d+[/%d]*$')
  return probe_at and (tonumber(probe_at) > now or redis.call('EXISTS', parked_key(task)) == 1)
end
