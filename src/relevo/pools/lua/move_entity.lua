--[[ Move an entity from one state to another, if it is in the expected state.
KEYS  entities states placed entity stats
ARGV  keep_ms    int   how long the counters live without traffic
      id         text  the entity
      from       word  its state
      to         word  its new state
      since      int   when it must have entered its state; '': any time
      older_ms   int   how long it must be there, for the purge; '': ignored
      most       int   states a pool may have
      fields     int   fields an entity may have
                       then metadata that changes: field, JSON ('': the field goes), …
GIVES 1 it moved, 0 it is not in that state, -1 the pool has too many states, -3 it would have too many fields; and its state
      ('': none) ]]
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- @include engine/tally
-- @include pools/entity
-- @include pools/count_fields
local state, elsewhere = standing(id, from, since, older_ms)
if not state then return { 0, elsewhere } end
if is_one_too_many(to, most) then return { -1, state } end
if is_too_much(id, 9, fields) then return { -3, state } end
quit(id, state)
enter(id, to)
for i = 9, #ARGV, 2 do write_field(id, ARGV[i], ARGV[i + 1]) end
tally(older_ms == '' and 'moved' or 'purged_' .. state, 1)
return { 1, to }
