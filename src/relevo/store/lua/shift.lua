--[[ Move an entity from one state to another, if it is where it is believed to be.
KEYS  entities states placed entity stats
ARGV  keep_ms    int   how long the counters live without traffic
      id         text  the entity
      from       word  where it is
      to         word  where it goes
      since      int   since exactly when it is there; '': whenever
      older_ms   int   for at least how long, for the purge; '': however long
      most       int   states a pool may have
                       then metadata that changes: field, JSON ('': the field goes), …
GIVES 1 it moved, 0 it is not there, -1 the pool has too many states; and where it is ('': nowhere) ]]
-- @include now
-- @include tally
-- @include pool
local state, elsewhere = standing(id, from, since, older_ms)
if not state then return { 0, elsewhere } end
if not redis.call('ZSCORE', states, to) and redis.call('ZCARD', states) >= tonumber(most) then return { -1, state } end
quit(id, state)
enter(id, to)
for i = 8, #ARGV, 2 do write_field(id, ARGV[i], ARGV[i + 1]) end
tally(older_ms == '' and 'moved' or 'purged_' .. state, 1)
return { 1, to }
