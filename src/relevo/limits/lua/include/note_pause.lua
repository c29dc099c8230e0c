-- Records a pause for display: 'since until why', until 0 for a pause without an end. Pausing again keeps `since`.
local function note_pause(name, ends, why)
  local since, ended = string.match(redis.call('HGET', pauses, name) or '', '^(%d+) (%d+)')
  if not since or ended ~= '0' and tonumber(ended) <= now then since = string.format('%d', now) end
  redis.call('HSET', pauses, name, since .. ' ' .. ends .. ' ' .. why)
end
