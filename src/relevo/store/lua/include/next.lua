-- When the queue will need somebody although nothing is pushed: a job is due, or a lease ends (0: never).
local function due_first()
  local score = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
  return score and math.floor(score / 1024)
end
local function lease_first() return tonumber(redis.call('ZRANGE', running, 0, 0, 'WITHSCORES')[2]) end
local function sooner(due_at, lease_end)
  if not (due_at and lease_end) then return due_at or lease_end or 0 end
  return math.min(due_at, lease_end)
end
