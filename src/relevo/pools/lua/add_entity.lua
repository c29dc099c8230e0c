--[[ Put an entity into a state of its pool, unless the pool has it already.
KEYS  entities   zset  all entities of the pool, by their last change
      states     zset  states with entities
      placed     -     prefix of the entities in one state, by when they entered it
      entity     -     prefix of their metadata
      stats      hash  counters
ARGV  keep_ms    int   how long the counters live without traffic
      id         text  the entity
      state      word  its state
      most       int   states a pool may have
                       then its metadata: field, JSON, …
GIVES 1 it is there now, 0 the pool has it already, -1 the pool has too many states ]]
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- @include engine/tally
-- @include pools/entity
if redis.call('ZSCORE', entities, id) then return 0 end
if is_one_too_many(state, most) then return -1 end
-- First what grows: a full server checks only the first write of a script, and after a removal all of this would pass.
redis.call('ZADD', entities, string.format('%d', now), id)
redis.call('DEL', entity_key(id)) -- left over from an entity of this name
enter(id, state)
for i = 5, #ARGV, 2 do write_field(id, ARGV[i], ARGV[i + 1]) end
tally('added', 1)
return 1
