--[[ Change a job that has not started, in one step: its body, its priority, when it runs.
KEYS  jobs ready scheduled running waiting carried claims groups clock idle bell parking parked limits lines rerouted sought
      ended
ARGV  id         id    the job
      before     json  its body as the caller has read it; '': any
      fresh      flag  1: only if it has never run
      body       json  its new body
      priority   int   its new priority
      when       text  '' now, '+ms' after a delay, 'ms' at a time; '=' as before
      tenant     text  its tenant
      weight     num   the weight of that
GIVES 'changed', 'started', 'ended', 'unknown', or 'other': its body is another one, or its workflow is being stored ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/parked_key
-- @include store/now
-- @include store/afford
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/place_waiting
-- @include engine/tenant
-- @include limits/leave_line
local found = redis.call('HGET', jobs, id)
if not found then return redis.call('EXISTS', ended_key(id)) == 1 and 'ended' or 'unknown' end
if redis.call('ZSCORE', running, id) or fresh == '1' and redis.call('HEXISTS', claims, id) == 1 then return 'started' end
if before ~= '' and before ~= found then return 'other' end
local is_ready, due = redis.call('ZSCORE', ready, id), redis.call('ZSCORE', scheduled, id)
local is_waiting = redis.call('ZSCORE', waiting, id)
if is_waiting and redis.call('HGET', carried_key(id), 'life') == 'waits' then -- for other jobs
  local _, then_when, _, name = place_in(redis.call('HGET', carried_key(id), 'place'))
  if when == '=' then when = then_when end
  redis.call('HSET', carried_key(id), 'place', table.concat({ priority, when, weight, name, tenant }, '\n'))
  redis.call('HSET', jobs, id, body)
  return 'changed'
end
local level = is_ready and math.floor(is_ready / LEVEL)
if when == '=' and level == tonumber(priority) and tenant_of(found) == tenant_of(body) then -- it keeps its place
  redis.call('HSET', jobs, id, body)
  return 'changed'
end
if is_waiting and redis.call('EXISTS', parking) == 0 then return 'other' end
if when == '=' then
  when = due and redis.call('HEXISTS', rerouted, id) == 0 and string.format('%d', math.floor(due / 1024)) or ''
end
leave_line(id) -- first: it asks for the body
redis.call('ZREM', ready, id)
redis.call('ZREM', scheduled, id)
redis.call('ZREM', waiting, id)
redis.call('HDEL', groups, id)
redis.call('HSET', jobs, id, body)
put(id, priority, when, tenant, weight)
keep_marks()
if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end -- nothing is queued: the virtual times start anew
local worker = wake() -- it may be due sooner than its timer was set for
if worker then ring(worker, '') end
return 'changed'
