-- Whether the changes from ARGV[first] on would add fields beyond the maximum of an entity. An entity that has more already,
-- written by another program, can still be changed.
local function is_too_much(id, first, fields)
  local key, changes = entity_key(id), (#ARGV - first + 1) / 2
  local size = changes > 0 and redis.call('HLEN', key) or 0
  if size + changes <= tonumber(fields) then return false end
  for _, own in ipairs({ '@state', '@since', '@retries' }) do size = size - redis.call('HEXISTS', key, own) end
  local before = size
  for i = first, #ARGV, 2 do
    local is_there = redis.call('HEXISTS', key, ARGV[i])
    size = size + (ARGV[i + 1] == '' and 0 or 1) - is_there
  end
  return size > tonumber(fields) and size > before
end
