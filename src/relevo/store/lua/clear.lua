--[[ Remove jobs that have not started, without a record. Those that run meanwhile are left alone.
KEYS  jobs ready scheduled claims story groups clock names waiters stats
ARGV  keep_ms    int   how long the counters live without traffic
                       then per job: id, name
GIVES how many were removed ]]
-- @include tally
local removed = 0
for i = 2, #ARGV, 2 do
  local id, name = ARGV[i], ARGV[i + 1]
  if redis.call('ZREM', ready, id) + redis.call('ZREM', scheduled, id) > 0 then
    redis.call('HDEL', jobs, id)
    redis.call('HDEL', claims, id)
    redis.call('HDEL', story, id)
    redis.call('HDEL', groups, id)
    local inboxes = redis.call('HGET', waiters, id)
    if inboxes then
      redis.call('HDEL', waiters, id)
      for inbox in string.gmatch(inboxes, '%S+') do redis.call('PUBLISH', inbox, id .. '{"state":"cancelled","reason":"cleared"}') end
    end
    if name ~= '' and redis.call('HGET', names, name) == id then redis.call('HDEL', names, name) end
    removed = removed + 1
  end
end
if removed > 0 then tally('cleared', removed) end
if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end -- nothing is queued: the virtual times start anew
return removed
