--[[ Let metadata expire that is on no list of its pool. What an entity leaves behind has a TTL; without one, another program
took it off the list or wrote it. Its age is noted when it is first found, unless it says since when it is in its state.
KEYS  entities   zset  all entities of the pool
      entity     -     prefix of their metadata
      stats      hash  counters
ARGV  keep_ms    int   how long the counters live without traffic
      older_ms   int   how old it must be
      data_ms    int   TTL of what is found
      acts       int   0: change nothing
                       then ids of entities
GIVES of each one found: id, since when (0: unknown), bytes, 1 if it is old enough ]]
-- @include store/entity_key
-- @include store/now
-- @include engine/tally
local reply = {}
for i = 5, #ARGV do
  local id = ARGV[i]
  local key = entity_key(id)
  if redis.call('TYPE', key).ok == 'hash' and redis.call('PTTL', key) == -1 and not redis.call('ZSCORE', entities, id) then
    local since, size = tonumber(redis.call('HGET', key, '@since') or '') or 0, 0
    for _, text in ipairs(redis.call('HGETALL', key)) do size = size + #text end
    local is_old = since > 0 and now - since >= tonumber(older_ms)
    if tonumber(acts) > 0 and since <= 0 then redis.call('HSET', key, '@since', string.format('%d', now)) end
    if tonumber(acts) > 0 and is_old then
      redis.call('HSET', key, '@state', '')
      if tonumber(data_ms) > 0 then redis.call('PEXPIRE', key, data_ms) else redis.call('DEL', key) end
      tally('purged_orphaned', 1)
    end
    for _, value in ipairs({ id, string.format('%.0f', since), size, is_old and 1 or 0 }) do reply[#reply + 1] = value end
  end
end
return reply
