-- A job's end: its record with its TTL, its entry in the index of its state, and notices to all that wait for it.
-- @include engine/outbox
-- @include engine/cap_index
local awaited, is_refused -- looked up when the first job ends; noted once
local function has_waiters()
  if awaited == nil then awaited = redis.call('EXISTS', waiters) == 1 end
  return awaited
end
-- Notifies waiting processes. Returns the edges to dependents: they may lead to other slots.
-- `spare_ms`: this job leaves no record, but a waiting process may have lost its connection for a moment. If no process
-- received the notice, the record is kept for that long.
local function farewell(id, record, spare_ms)
  local noted = has_waiters() and redis.call('HGET', waiters, id)
  if not noted then return '' end
  redis.call('HDEL', waiters, id)
  local edges, asked, received = {}, false, 0
  for one in string.gmatch(noted, '%S+') do
    if string.sub(one, 1, 1) == '>' then edges[#edges + 1] = one
    else
      asked = true
      -- Channel names come from data, and ACLs differ: a refused PUBLISH counts as not received and must not stop the turn.
      local receivers = redis.pcall('PUBLISH', one, id .. record)
      if type(receivers) == 'number' then received = received + receivers
      elseif not is_refused then
        is_refused = true
        -- @include store/note_fault
        note_fault(waiters, ' PUBLISH', 'a process that waits for a result could not be notified: ' .. tostring(receivers.err))
      end
    end
  end
  if spare_ms and asked and received == 0 then
    redis.call('SET', ended_key(id), record, 'PX', spare_ms)
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
      -- A record that can be revived keeps its last token, so that a worker with an older one cannot settle the next life,
      -- and its edges, since its dependents are revived with it.
      local known = '{"token":' .. token .. ',' .. (edges ~= '' and '"edges":"' .. edges .. '",' or '') .. '"'
      kept = known .. string.sub(record, 3)
    end
    redis.call('SET', ended_key(id), kept, 'PX', ttl)
    redis.call('ZADD', index, now, id)
    outlive(index, ttl)
    if index == done then
      redis.call('ZREMRANGEBYRANK', index, 0, -done_max - 1) -- only the index is capped: each result has its own TTL
    else
      if state == 'dead' then join_alike(id, kept, ttl, string.format('%d', now)) end
      cap(index, state)
    end
  end
  -- Its output and log lines live as long as its record.
  if ttl > 0 then redis.call('PEXPIRE', notes_key(id), ttl) else redis.call('UNLINK', notes_key(id)) end
  announce(id, state, token * 2, edges, record)
  if index ~= done then no_longer_than(math.max(0, ttl), id, token * 2 + 1, edges) end
end
local function release(name, id) -- only the live job that holds a name may free it
  if name ~= '' and redis.call('HGET', names, name) == id then redis.call('HDEL', names, name) end
end
