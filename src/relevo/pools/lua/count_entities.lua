--[[ Count the entities of a pool in each state, in one snapshot.
KEYS  entities   zset  all entities of the pool
      states     zset  states with entities
      placed     -     prefix of the entities in one state
ARGV  most       int   states that are counted
GIVES the total, then per state: word, how many ]]
-- @include store/placed_key
local reply = { redis.call('ZCARD', entities) }
for _, state in ipairs(redis.call('ZRANGE', states, 0, most - 1)) do
  reply[#reply + 1] = state
  reply[#reply + 1] = redis.call('ZCARD', placed_key(state))
end
return reply
