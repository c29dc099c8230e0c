-- A job's end: its record under a time limit, its place in the index of its state, and word to those who wait for it.
local awaited -- asked once, when the first job ends
local function somebody_waits()
  if awaited == nil then awaited = redis.call('EXISTS', waiters) == 1 end
  return awaited
end
local function tell(id, record)
  if not somebody_waits() then return end
  local inboxes = redis.call('HGET', waiters, id)
  if not inboxes then return end
  redis.call('HDEL', waiters, id)
  for inbox in string.gmatch(inboxes, '%S+') do redis.call('PUBLISH', inbox, id .. record) end
end
local function outlive(key, ttl) -- an index lives as long as its longest record
  if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, ttl) end
end
local function file(index, id, record, ttl, token)
  if ttl > 0 then
    -- The last token goes with a record that can be revived: who still holds an older one must not settle the next life.
    local kept = index ~= done and string.gsub(record, '^{"', '{"token":' .. token .. ',"', 1) or record
    redis.call('SET', ended .. ':' .. id, kept, 'PX', ttl)
    redis.call('ZADD', index, now, id)
    outlive(index, ttl)
    if index == done then
      redis.call('ZREMRANGEBYRANK', index, 0, -done_max - 1) -- only the index is short: a result lives for its own time
    else
      for _, old in ipairs(redis.call('ZRANGE', index, 0, 2)) do -- entries whose record has ended leave with those that come
        if redis.call('EXISTS', ended .. ':' .. old) == 0 then redis.call('ZREM', index, old) end
      end
      local over = redis.call('ZCARD', index) - dead_max
      if over > 0 then
        local old = redis.call('ZPOPMIN', index, math.min(over, 100))
        for i = 1, #old, 2 do redis.call('DEL', ended .. ':' .. old[i]) end
        redis.call('HINCRBY', stats, 'dropped', #old / 2)
      end
    end
  end
  tell(id, record)
end
local function release(name, id) -- a name belongs to the living job that took it, nobody else may free it
  if name ~= '' and redis.call('HGET', names, name) == id then redis.call('HDEL', names, name) end
end
