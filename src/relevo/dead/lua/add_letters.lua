--[[ File dead letters that come from elsewhere (an import, for example), each unless its id is taken.
KEYS  jobs ended dead alike kinds stats errands letters binned carried notes
ARGV  keep_ms    int   how long the counters live without traffic
      dead_max   int   dead letters kept
      ttl        int   their TTL, from now
                       then per dead letter: id, when it died, record, number of carried fields, each field and its value
GIVES per dead letter 1 filed, 0 the id is taken; then how many of the oldest were dropped for them; last, 1 if there is
      something to relay ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/alike_key
-- @include store/binned_key
-- @include store/now
-- @include engine/outbox
-- @include engine/outbox_due
-- @include engine/tally
-- @include engine/cap_index
local reply, filed, dropped = {}, 0, 0
local at = 4
while ARGV[at] do
  local id, died, record, fields = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  local is_taken = redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended_key(id), binned_key(id)) > 0
  if not is_taken then
    redis.call('SET', ended_key(id), record, 'PX', ttl)
    redis.call('ZADD', dead, died, id)
    outlive(dead, tonumber(ttl))
    join_alike(id, record, tonumber(ttl), died)
    local bag = carried_key(id)
    redis.call('DEL', bag)
    if fields > 0 then
      redis.call('HSET', bag, 'life', 'freed', 'open', 0, 'bad', 0) -- its parents have ended, and it carries their results
      for field = at + 4, at + 2 + 2 * fields, 2 do redis.call('HSET', bag, ARGV[field], ARGV[field + 1]) end
      redis.call('PEXPIRE', bag, ttl)
    end
    filed = filed + 1
  end
  reply[#reply + 1] = is_taken and 0 or 1
  at = at + 4 + 2 * fields
end
if filed > 0 then
  dropped = cap(dead, 'dead')
  tally('imported', filed)
end
reply[#reply + 1] = dropped
reply[#reply + 1] = errand_is_due()
return reply
