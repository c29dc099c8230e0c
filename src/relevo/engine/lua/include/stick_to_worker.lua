-- A job that should come back to one worker, "worker lease", is handed to that worker if it is alive: it holds what others do
-- not, such as a web socket. Should it die with the job, the lease ends, and any other worker gets it.
-- @include limits/queue_pause
-- @include limits/is_bound
local function stick(id, prefer)
  local worker, lease = string.match(prefer or '', '^(%S+) (%d+)$')
  if not worker or tonumber(redis.call('ZSCORE', instances, worker) or 0) < now or is_halted() then return false end
  local body = redis.call('HGET', jobs, id)
  if redis.call('EXISTS', limits, parking) > 0 and is_bound(body) then return false end
  redis.call('ZADD', running, now + lease, id)
  redis.call('HSET', claims, id, '1 ' .. worker .. ' ' .. string.format('%d', now))
  ring(worker, 'j' .. id .. body)
  return true
end
