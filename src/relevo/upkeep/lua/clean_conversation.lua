--[[ Remove what is left of a conversation in this queue: records, logs and results of jobs that have ended. Live jobs are in
use and stay, and so do dead letters, unless asked for.
KEYS  jobs carried ended notes done dead cancelled expired made stats alike kinds
      binned     -     prefix of dead letters that can be restored
      bin        zset  their ids
ARGV  keep_ms    int   how long the counters live without traffic
      conversation  text  its id
      buried     flag  1: dead letters, too
      observe    flag  1: only count
      most       int   entries looked at in one call
      skip       int   entries to pass over: those that the call before found in use
GIVES how many were removed, how many are alive, how many dead letters stay, 1 if there are more ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/alike_key
-- @include store/binned_key
-- @include store/made_key
-- @include engine/tally
-- @include dead/error_groups
local list = made_key(conversation)
local ids = redis.call('ZRANGE', list, skip, skip + most - 1)
local removed, living, dead_ones = 0, 0, 0
for _, id in ipairs(ids) do
  if redis.call('HEXISTS', jobs, id) == 1 then living = living + 1
  elseif buried ~= '1' and (redis.call('EXISTS', binned_key(id)) == 1 or redis.call('ZSCORE', dead, id) and redis.call('EXISTS', ended_key(id)) == 1) then
    dead_ones = dead_ones + 1
  elseif observe == '1' then removed = removed + 1
  else
    if redis.call('ZREM', dead, id) == 1 then leave_alike(id, redis.call('GETRANGE', ended_key(id), 0, HEAD - 1)) end
    for _, index in ipairs({ done, cancelled, expired }) do redis.call('ZREM', index, id) end
    redis.call('DEL', ended_key(id), notes_key(id), carried_key(id), binned_key(id))
    redis.call('ZREM', bin, id)
    redis.call('ZREM', list, id)
    removed = removed + 1
  end
end
if removed > 0 and observe ~= '1' then tally('cleaned', removed) end
return { removed, living, dead_ones, #ids == tonumber(most) and 1 or 0 }
