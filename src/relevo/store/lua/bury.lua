--[[ File dead letters that come from elsewhere, each unless its id is taken.
KEYS  jobs ended dead alike kinds stats errands letters binned
ARGV  keep_ms    int   how long the counters live without traffic
      dead_max   int   dead letters kept
      ttl        int   how long they live, from now
                       then per letter: id, when it died, record
GIVES per letter 1 filed, 0 there is such a job; last, 1 if there is something to relay ]]
-- @include now
-- @include post
-- @include errand
-- @include tally
-- @include cap
local said, filed = {}, 0
for i = 4, #ARGV, 3 do
  local id, died, record = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local is_taken = redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended .. ':' .. id, binned .. ':' .. id) > 0
  if not is_taken then
    redis.call('SET', ended .. ':' .. id, record, 'PX', ttl)
    redis.call('ZADD', dead, died, id)
    outlive(dead, tonumber(ttl))
    join_alike(id, record, tonumber(ttl), died)
    filed = filed + 1
  end
  said[#said + 1] = is_taken and 0 or 1
end
if filed > 0 then
  cap(dead, 'dead')
  tally('imported', filed)
end
said[#said + 1] = errand_is_due()
return said
