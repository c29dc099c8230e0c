-- Frees what a job holds under limits. Lines are looked at by the next turn after they are due.
local function free_places(id)
  local held = redis.call('HGET', holding, id)
  if not held then return end
  redis.call('HDEL', holding, id)
  for name in string.gmatch(held, '[^\n]+') do
    if redis.call('HINCRBY', holding, '#' .. name, -1) < 1 then redis.call('HDEL', holding, '#' .. name) end
  end
end
