-- What is paused is written down for people: 'since until why', until 0 for a pause without an end. Said again, since when it
-- is so stays.
local function note_pause(name, ends, why)
  local since, ended = string.match(redis.call('HGET', pauses, name) or '', '^(%d+) (%d+)')
  if not since or ended ~= '0' and tonumber(ended) <= now then since = string.format('%d', now) end
  redis.call('HSET', pauses, name, since .. ' ' .. ends .. ' ' .. why)
end
