--[[ Restore dead letters that were discarded shortly before.
KEYS  jobs ended notes carried binned bin stats errands letters dead alike kinds
ARGV  keep_ms    int   how long the counters live without traffic
      dead_max   int   dead letters kept
                       then the ids
GIVES how many came back, 1 if there is something to relay, how many stay in the bin: the index is full of younger ones ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/alike_key
-- @include store/binned_key
-- @include store/now
-- @include engine/tally
-- @include engine/outbox
-- @include engine/outbox_due
-- @include engine/cap_index
local back, full = 0, 0
tidy(dead, 1000)
-- It comes back at its old position, and the oldest are dropped first.
local function has_room(died)
  if redis.call('ZCARD', dead) < tonumber(dead_max) then return true end
  return died > tonumber(redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')[2] or 0)
end
local function bring_back(id, record, died, ttl)
  -- Dependents were notified that it is gone. Its death is announced again, under a later number: as if it had died anew.
  local token, edges = string.match(record, '^{"token":(%d+),"edges":"([^"]*)"')
  if edges then
    token = token + 1
    record = string.gsub(record, '^{"token":%d+', '{"token":' .. string.format('%d', token), 1)
    announce(id, 'dead', string.format('%d', token * 2), edges, '')
    no_longer_than(ttl, id, string.format('%d', token * 2 + 1), edges)
  end
  redis.call('SET', ended_key(id), record, 'PX', ttl)
  redis.call('ZADD', dead, died, id)
  outlive(dead, ttl)
  join_alike(id, record, ttl, died)
  for _, key in ipairs({ carried_key(id), notes_key(id) }) do redis.call('PEXPIRE', key, ttl) end
  back = back + 1
end
for i = 3, #ARGV do
  local id = ARGV[i]
  local text = redis.call('GET', binned_key(id))
  if text then
    local ttl, record = tonumber(string.sub(text, -15)) - now, string.sub(text, 1, -16)
    local died = string.match(head_of(record), '"ended_ms":(%d+)') or string.format('%d', now)
    -- The same event may have come again since, under the same id.
    local is_alone = redis.call('HEXISTS', jobs, id) == 0 and redis.call('EXISTS', ended_key(id)) == 0
    if ttl > 0 and is_alone and not has_room(tonumber(died)) then
      full = full + 1
    else
      redis.call('DEL', binned_key(id))
      redis.call('ZREM', bin, id)
      if ttl > 0 and is_alone then bring_back(id, record, died, ttl) end
    end
  else
    redis.call('ZREM', bin, id)
  end
end
if back > 0 then
  cap(dead, 'dead')
  tally('restored', back)
end
return { back, errand_is_due(), full }
