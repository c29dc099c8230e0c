-- When the queue will need somebody although nothing is pushed: a job is due, or a lease ends. 0: never.
local function next_event()
  local due = redis.call('ZRANGE', scheduled, 0, 0, 'WITHSCORES')[2]
  local lease_end = redis.call('ZRANGE', running, 0, 0, 'WITHSCORES')[2]
  local first = math.min(due and math.floor(due / 1024) or math.huge, lease_end or math.huge)
  return first == math.huge and 0 or first
end
