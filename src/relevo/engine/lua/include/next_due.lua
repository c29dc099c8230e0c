-- When the queue next needs a worker although nothing is pushed: a job is due, a lease ends, or a line must be looked at
-- (0: never).
local function due_first()
  local score = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
  return score and math.floor(score / 1024)
end
-- `hold`: until when no lease is taken back, see engine/include/contact.lua; except those of holders known to be dead, see engine/release_leases.lua.
local ABANDONED = 1
local function lease_first(hold)
  local first = tonumber(redis.call('ZRANGE', running, 0, 0, 'WITHSCORES')[2])
  return first and first > ABANDONED and math.max(first, hold) or first
end
local function look_first() return tonumber(redis.call('ZRANGE', parking, 0, 0, 'WITHSCORES')[2]) end
local function sooner(due_at, lease_end, look_at)
  local first = math.min(due_at or math.huge, lease_end or math.huge, look_at or math.huge)
  return first < math.huge and first or 0
end
