-- The queue goes on: everybody who asked meanwhile is called.
local asked = redis.call('HGETALL', paused)
for i = 1, #asked, 2 do
  if asked[i] ~= '' then ring(asked[i], '') end
end
redis.call('DEL', paused)
redis.call('HDEL', pauses, 'q:')
