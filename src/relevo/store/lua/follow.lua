--[[ Note with jobs (or workflows) of this queue what depends on them.
KEYS  jobs running waiters carried ended
ARGV                   per parent: id, edge
GIVES per parent: its state and the number of its end, '' and 0 while it lives, 'unknown' and 0 if there is none ]]
-- @include afford
local states = {}
for i = 1, #ARGV, 2 do
  local id, edge = ARGV[i], ARGV[i + 1]
  local record = redis.call('GET', ended .. ':' .. id)
  local state, number = '', 0
  if record then
    state = string.match(record, '"state":"(%a+)"')
    number = tonumber(string.match(record, '^{"token":(%d+),') or 1) * 2
    if redis.call('HGET', carried .. ':' .. id, 'state') then -- a workflow
      number = tonumber(redis.call('HGET', carried .. ':' .. id, 'number'))
      local edges = redis.call('HGET', carried .. ':' .. id, 'edges')
      redis.call('HSET', carried .. ':' .. id, 'edges', edges == '' and edge or edges .. ' ' .. edge)
    elseif state ~= 'done' then -- should it be revived, what depends on it comes back with it
      local head, rest = string.match(record, '^({"token":%d+,)(.*)$')
      if head then
        local edges, beyond = string.match(rest, '^"edges":"([^"]*)",(.*)$')
        if edges then edge, rest = edges .. ' ' .. edge, beyond end
        redis.call('SET', ended .. ':' .. id, head .. '"edges":"' .. edge .. '",' .. rest, 'KEEPTTL')
      end
    end
  elseif redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', carried .. ':' .. id) == 1 then
    local noted = redis.call('HGET', waiters, id)
    redis.call('HSET', waiters, id, noted and noted .. ' ' .. edge or edge)
  else
    state = 'unknown'
  end
  states[#states + 1], states[#states + 2] = state, number
end
return states
