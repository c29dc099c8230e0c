--[[ Let what is known of an entity end that is in no state: it was taken out of its pool by somebody else's hand.
KEYS  entities states placed entity stats
ARGV  keep_ms    int   how long the counters live without traffic
      id         text  the entity
      since      int   since exactly when nothing happened to it
      older_ms   int   for at least how long
      data_ms    int   how long its metadata is kept from now on
GIVES 1 it has an end now, 0 something happened to it ]]
-- @include now
-- @include tally
-- @include pool
local score = redis.call('ZSCORE', entities, id)
if not score or tonumber(score) ~= tonumber(since) or now - score < tonumber(older_ms) then return 0 end
for _, word in ipairs(redis.call('ZRANGE', states, 0, 99)) do
  if redis.call('ZSCORE', placed .. ':' .. word, id) then return 0 end
end
let_end(id, data_ms)
tally('purged_orphaned', 1)
return 1
