--[[ Remove jobs that have not started, without a record. Those that have started by then are left alone.
KEYS  jobs ready scheduled waiting carried claims story groups clock names unique waiters stats errands letters ended done
      parking parked limits lines notes rerouted sought
ARGV  keep_ms    int   how long the counters live without traffic
      state      word  state announced to their dependents: removed, or lapsed (never stored for good)
      done_max   int   unused here
      dead_max   int   unused here
                       then per job: id, name, the signature of its end or ''
GIVES how many were removed, 1 if there is something to relay ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/unique_key
-- @include store/parked_key
-- @include store/alike_key
-- @include store/now
-- @include engine/tally
-- @include engine/end_job
-- @include engine/outbox_due
-- @include engine/tenant
-- @include engine/forget_job
local removed = 0
for i = 5, #ARGV, 3 do
  local id, name, signature = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if redis.call('ZREM', ready, id) + redis.call('ZREM', scheduled, id) + redis.call('ZREM', waiting, id) > 0 then
    local token = string.match(redis.call('HGET', claims, id) or '0', '^%d+') or '0'
    forget(id, name)
    redis.call('DEL', carried_key(id), notes_key(id))
    if state == 'lapsed' and redis.call('GET', unique_key(name)) == id then redis.call('DEL', unique_key(name)) end
    local proof = signature ~= '' and ',"signature":"' .. signature .. '"' or ''
    tell(id, state, '{"state":"cancelled","reason":"cleared"' .. proof .. '}', token)
    removed = removed + 1
  end
end
if removed > 0 then tally('cleared', removed) end
if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end -- ready is empty: virtual times start anew
return { removed, errand_is_due() }
