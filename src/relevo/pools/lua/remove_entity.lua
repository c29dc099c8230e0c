--[[ Take an entity out of its pool. Its metadata stays for a while.
KEYS  entities states placed entity stats
ARGV  keep_ms    int   how long the counters live without traffic
      id         text  the entity
      from       word  the state it must be in; '': any
      since      int   when it must have entered that state; '': any time
      older_ms   int   how long it must be there, for the purge; '': ignored
      data_ms    int   TTL of its metadata
GIVES 1 it is removed, 0 it is not in that state; and its state ('': none) ]]
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- @include engine/tally
-- @include pools/entity
local state, elsewhere = standing(id, from, since, older_ms)
if not state then return { 0, elsewhere } end
quit(id, state)
let_end(id, data_ms)
tally(older_ms == '' and 'removed' or 'purged_' .. state, 1)
return { 1, '' }
