-- Resume the queue: wake every worker that asked for jobs during the pause.
local asked = redis.call('HGETALL', paused)
for i = 1, #asked, 2 do
  if asked[i] ~= '' then ring(asked[i], '') end
end
redis.call('DEL', paused)
redis.call('HDEL', pauses, 'q:')
