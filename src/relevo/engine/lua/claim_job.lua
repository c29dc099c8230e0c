--[[ Claim one job by its id for a caller with a loop of its own: a job that could start, or one that runs, which changes
hands. What waits for a time or for other jobs stays where it is. Limits and pauses do not hold it up, but count it: jobs
that are not asked for by their ids wait the longer.
KEYS  jobs ready running waiting carried claims story clock parking parked limits holding lines rerouted sought
ARGV  id         id    the job
      worker     id    the caller
      lease_ms   int   from now on
      token      text  '': only if it does not run; else only if it runs under this token, which it keeps
GIVES now, claim, body, story; only now: it is not to be had ]]
-- @include store/carried_key
-- @include store/parked_key
-- @include store/now
-- @include engine/tenant
-- @include limits/leave_line
local body, claim = redis.call('HGET', jobs, id), redis.call('HGET', claims, id)
if not body then return { now } end
local of_before, flag = string.match(claim or '', '^(%d+) %S+ %S+ *(c?)')
local runs = redis.call('ZSCORE', running, id)
if token ~= '' then
  if not runs or of_before ~= token then return { now } end
else
  local waits = redis.call('ZSCORE', waiting, id) and redis.call('HGET', carried_key(id), 'life') == 'waits'
  if runs or waits or not (redis.call('ZSCORE', ready, id) or redis.call('ZSCORE', waiting, id)) then return { now } end
  leave_line(id)
  redis.call('ZREM', ready, id)
  redis.call('ZREM', waiting, id)
  if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end -- nothing is queued: the virtual times start anew
  local under = {}
  for _, name in ipairs({ 'q:', tenant_of(body) or '', task_of(body) or '' }) do
    if name ~= '' and redis.call('HEXISTS', limits, name) == 1 then
      under[#under + 1] = name
      redis.call('HINCRBY', holding, '#' .. name, 1)
    end
  end
  if #under > 0 then redis.call('HSET', holding, id, table.concat(under, '\n')) end
  token = string.format('%d', (tonumber(of_before) or 0) + 1)
end
claim = table.concat({ token, worker, string.format('%d', now) }, ' ') .. (flag == 'c' and ' c' or '')
redis.call('ZADD', running, now + lease_ms, id)
redis.call('HSET', claims, id, claim)
return { now, claim, body, redis.call('HGET', story, id) or '' }
