-- Caps an index of failed records at `dead_max`; returns how many were dropped.
-- @include dead/error_groups
local function cap(index, state)
  tidy(index, 10)
  local over = redis.call('ZCARD', index) - dead_max
  if over <= 0 then return 0 end
  local old = redis.call('ZPOPMIN', index, math.min(over, 100))
  for i = 1, #old, 2 do
    -- only the records that hold edges are read as a whole
    local head = redis.call('GETRANGE', ended_key(old[i]), 0, HEAD - 1)
    if string.find(head, '^{"token":%d+,"edges":') then give_up_on(old[i], redis.call('GET', ended_key(old[i]))) end
    if state == 'dead' then leave_alike(old[i], head) end
    redis.call('DEL', ended_key(old[i]), notes_key(old[i]))
  end
  redis.call('HINCRBY', stats, 'dropped', #old / 2)
  return #old / 2
end
