-- The queue goes on: everybody who asked meanwhile is called.
for _, waits in ipairs(redis.call('HKEYS', paused)) do
  if waits ~= '' then ring(waits, '') end
end
redis.call('DEL', paused)
redis.call('HDEL', pauses, 'q:')
