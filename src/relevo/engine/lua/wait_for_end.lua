--[[ Wait for a job's end: returns its record if it has ended, else registers the caller's inbox.
KEYS  jobs       hash  bodies of living jobs
      waiters    hash  id -> inboxes, separated by spaces
      running    zset  lease deadline
      carried    -     prefix of what jobs carry with them; a workflow has only this
      ended      -     prefix of records of finished jobs
ARGV  id         id    the job
      inbox      name  channel of the waiting process
GIVES 'waits', or 'ended' and the record, or 'unknown' ]]
-- @include store/ended_key
-- @include store/carried_key
local record = redis.call('GET', ended_key(id))
if record then return { 'ended', record } end
-- @include store/afford
if redis.call('HEXISTS', jobs, id) == 0 and redis.call('HGET', carried_key(id), 'life') ~= 'open' then return { 'unknown', '' } end
if redis.call('HSETNX', waiters, id, inbox) == 0 then
  local inboxes = redis.call('HGET', waiters, id)
  if not string.find(' ' .. inboxes .. ' ', ' ' .. inbox .. ' ', 1, true) then
    redis.call('HSET', waiters, id, inboxes .. ' ' .. inbox)
  end
end
return { 'waits', '' }
