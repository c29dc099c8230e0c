-- A job's end: its record under a time limit, its place in the index of its state, and word to all who wait for it.
-- @include post
-- @include cap
local awaited, is_refused -- asked once, when the first job ends; noted once
local function somebody_waits()
  if awaited == nil then awaited = redis.call('EXISTS', waiters) == 1 end
  return awaited
end
-- Processes that wait are told at once. Edges to what depends on the job are given back: they may lead to other slots.
-- `spare_ms`: nothing is kept of this job, but who waits for it may have lost its connection for a moment. If nobody
-- was there to hear it, the record is kept for so long.
local function farewell(id, record, spare_ms)
  local noted = somebody_waits() and redis.call('HGET', waiters, id)
  if not noted then return '' end
  redis.call('HDEL', waiters, id)
  local edges, asked, heard = {}, false, 0
  for one in string.gmatch(noted, '%S+') do
    if string.sub(one, 1, 1) == '>' then edges[#edges + 1] = one
    else
      asked = true
      -- The name of a channel comes from data, and rights differ: a refusal counts as "not heard", and must not stop the turn.
      local said = redis.pcall('PUBLISH', one, id .. record)
      if type(said) == 'number' then heard = heard + said
      elseif not is_refused then
        is_refused = true
        note_fault(waiters, ' PUBLISH', 'who waits for a result could not be told: ' .. tostring(said.err))
      end
    end
  end
  if spare_ms and asked and heard == 0 then
    redis.call('SET', ended .. ':' .. id, record, 'PX', spare_ms)
    redis.call('HINCRBY', stats, 'unheard', 1)
  end
  return table.concat(edges, ' ')
end
local function tell(id, state, record, token, spare_ms)
  announce(id, state, token * 2, farewell(id, record, spare_ms), record)
end
local function file(index, state, id, record, ttl, token)
  local edges = farewell(id, record, ttl < 0 and -ttl)
  if ttl > 0 then
    local kept = record
    if index ~= done then
      -- What can be revived keeps its last token, since who still holds an older one must not settle the next life, and
      -- its edges, since what depends on it comes back with it.
      local known = '{"token":' .. token .. ',' .. (edges ~= '' and '"edges":"' .. edges .. '",' or '') .. '"'
      kept = known .. string.sub(record, 3)
    end
    redis.call('SET', ended .. ':' .. id, kept, 'PX', ttl)
    redis.call('ZADD', index, now, id)
    outlive(index, ttl)
    if index == done then
      redis.call('ZREMRANGEBYRANK', index, 0, -done_max - 1) -- only the index is short: a result lives for its own time
    else
      if state == 'dead' then join_alike(id, kept, ttl, string.format('%d', now)) end
      cap(index, state)
    end
  end
  -- What it printed and logged lives as long as its record.
  if ttl > 0 then redis.call('PEXPIRE', notes .. ':' .. id, ttl) else redis.call('UNLINK', notes .. ':' .. id) end
  announce(id, state, token * 2, edges, record)
  if index ~= done then no_longer_than(math.max(0, ttl), id, token * 2 + 1, edges) end
end
local function release(name, id) -- a name belongs to the living job that took it, nobody else may free it
  if name ~= '' and redis.call('HGET', names, name) == id then redis.call('HDEL', names, name) end
end
