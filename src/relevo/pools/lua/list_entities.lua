--[[ A page of the entities in one state, longest in it first.
KEYS  placed     -     prefix of the entities in one state
      entity     -     prefix of their metadata
ARGV  state      word  which state
      older_ms   int   in it for at least so long
      offset     int   from here
      limit      int   this many
GIVES ids, since when each is in it, metadata of each as field, JSON, … ]]
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- by rank, not by score: an offset among scores would cost a walk
local rows = redis.call('ZRANGE', placed_key(state), offset, offset + limit - 1, 'WITHSCORES')
local ids, since, known, border = {}, {}, {}, now - older_ms
for i = 1, #rows, 2 do
  if tonumber(rows[i + 1]) > border then break end
  ids[#ids + 1], since[#since + 1] = rows[i], rows[i + 1]
  known[#known + 1] = redis.call('HGETALL', entity_key(rows[i]))
end
return { ids, since, known }
