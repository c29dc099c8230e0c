--[[ How many entities are in which state of a pool, in one snapshot.
KEYS  entities   zset  all entities of the pool
      states     zset  states that hold some
      placed     -     prefix of the entities in one state
ARGV  most       int   states that are counted
GIVES how many there are in all, then per state: word, how many ]]
local said = { redis.call('ZCARD', entities) }
for _, state in ipairs(redis.call('ZRANGE', states, 0, most - 1)) do
  said[#said + 1] = state
  said[#said + 1] = redis.call('ZCARD', placed .. ':' .. state)
end
return said
