--[[ Watch jobs of this queue for a while, or stop watching them: workers publish what happens to them
(engine/publish_events.lua).
KEYS  watching bell
ARGV  channel    name  of the watching process
      live_ms    int   how long they are watched; 0: no longer
      workers    int   how many workers are called, so that they know that the queue is watched
                       then the workers, then what is watched: ids, or '*' for all jobs
GIVES 1 ]]
-- @include store/now
-- @include store/bell_key
workers = tonumber(workers)
for i = 4, 3 + workers do
  redis.call('RPUSH', bell_key(ARGV[i]), 'w')
  redis.call('PEXPIRE', bell_key(ARGV[i]), 60000) -- a worker that died never reads its bell
end
for i = 4 + workers, #ARGV do
  local others = {}
  for till, one in string.gmatch(redis.call('HGET', watching, ARGV[i]) or '', '(%d+) (%S+)') do
    if one ~= channel and tonumber(till) > now then others[#others + 1] = till .. ' ' .. one end
  end
  if live_ms ~= '0' then others[#others + 1] = string.format('%d', now + live_ms) .. ' ' .. channel end
  if #others == 0 then redis.call('HDEL', watching, ARGV[i])
  else redis.call('HSET', watching, ARGV[i], table.concat(others, ' '))
  end
end
if live_ms ~= '0' then redis.call('PEXPIRE', watching, live_ms) end
return 1
