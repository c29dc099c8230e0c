--[[ Take an entity out of its pool. Its metadata stays for a while.
KEYS  entities states placed entity stats
ARGV  keep_ms    int   how long the counters live without traffic
      id         text  the entity
      from       word  where it must be; '': wherever it is
      since      int   since exactly when it is there; '': whenever
      older_ms   int   for at least how long, for the purge; '': however long
      data_ms    int   how long its metadata is kept
GIVES 1 it is gone, 0 it is not there; and where it is ('': nowhere) ]]
-- @include now
-- @include tally
-- @include pool
local state, elsewhere = standing(id, from, since, older_ms)
if not state then return { 0, elsewhere } end
quit(id, state)
let_end(id, data_ms)
tally(older_ms == '' and 'removed' or 'purged_' .. state, 1)
return { 1, '' }
