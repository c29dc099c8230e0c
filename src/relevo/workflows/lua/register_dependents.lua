--[[ Register dependents with a job (or workflow) of this queue.
KEYS  jobs running waiters carried ended errands letters
ARGV  id         id    the parent
      new        text  edges to its dependents, separated by spaces
GIVES its state and the number of its end; '' and 0 while it is alive, 'unknown' and 0 if it does not exist ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/now
-- @include store/afford
-- @include engine/outbox
local bag = carried_key(id)
local record = redis.call('GET', ended_key(id))
if not record then
  if redis.call('HEXISTS', jobs, id) == 0 and redis.call('HGET', bag, 'life') ~= 'open' then return { 'unknown', 0 } end
  local noted = redis.call('HGET', waiters, id)
  redis.call('HSET', waiters, id, noted and noted .. ' ' .. new or new)
  return { '', 0 }
end
local state = string.match(record, '"state":"(%a+)"')
local number = tonumber(string.match(record, '^{"token":(%d+),') or 1) * 2
if state == 'done' then return { state, number } end
-- If it is retried, its dependents come back with it; and they wait only as long as a retry is possible.
if redis.call('HGET', bag, 'life') == 'closed' then -- a workflow
  local known = redis.call('HMGET', bag, 'number', 'edges')
  number = tonumber(known[1])
  if known[2] ~= '' then new = known[2] .. ' ' .. new end
  redis.call('HSET', bag, 'edges', new)
else
  local head, rest = string.match(record, '^({"token":%d+,)(.*)$')
  if not head then return { state, number } end
  local edges, beyond = string.match(rest, '^"edges":"([^"]*)",(.*)$')
  if edges then new, rest = edges .. ' ' .. new, beyond end
  redis.call('SET', ended_key(id), head .. '"edges":"' .. new .. '",' .. rest, 'KEEPTTL')
end
no_longer_than(redis.call('PTTL', ended_key(id)), id, number + 1, new)
return { state, number }
