--[[ Let the metadata of an entity expire that is in no state: another program took it out of its pool.
KEYS  entities states placed entity stats
ARGV  keep_ms    int   how long the counters live without traffic
      id         text  the entity
      since      int   when it was last changed, exactly
      older_ms   int   how long ago that must be at least
      data_ms    int   TTL of its metadata from now on
GIVES 1 it expires now, 0 it was changed ]]
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- @include engine/tally
-- @include pools/entity
local score = redis.call('ZSCORE', entities, id)
if not score or tonumber(score) ~= tonumber(since) or now - score < tonumber(older_ms) then return 0 end
for _, word in ipairs(redis.call('ZRANGE', states, 0, 99)) do
  if redis.call('ZSCORE', placed_key(word), id) then return 0 end
end
let_end(id, data_ms)
tally('purged_orphaned', 1)
return 1
