--[[ Find entities of a pool that are in no state, among a part of them, those unchanged for longest first.
KEYS  entities states placed entity
ARGV  before_ms  int   unchanged since then
      offset     int   from here
      most       int   how many are scanned
GIVES how many were scanned, then per entity that is in no state: id, when it was last changed, bytes of its
      metadata ]]
-- @include store/placed_key
-- @include store/entity_key
local ids = redis.call('ZRANGE', entities, offset, offset + most - 1, 'WITHSCORES')
local reply, words = { 0 }, nil
local function is_placed(id)
  local state = redis.call('HGET', entity_key(id), '@state')
  if state and redis.call('ZSCORE', placed_key(state), id) then return true end
  words = words or redis.call('ZRANGE', states, 0, 99)
  for _, word in ipairs(words) do
    if redis.call('ZSCORE', placed_key(word), id) then return true end
  end
  return false
end
before_ms = tonumber(before_ms)
for i = 1, #ids, 2 do
  if tonumber(ids[i + 1]) > before_ms then break end
  reply[1] = reply[1] + 1
  if not is_placed(ids[i]) then
    local size = 0
    for _, text in ipairs(redis.call('HGETALL', entity_key(ids[i]))) do size = size + #text end
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = ids[i], ids[i + 1], size
  end
end
return reply
