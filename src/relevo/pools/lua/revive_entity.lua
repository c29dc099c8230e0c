--[[ Revive an entity from its dead letter. Idempotent.
KEYS  entities states placed entity stats ended dead alike kinds
ARGV  keep_ms    int   how long the counters live without traffic
      letter     id    the dead letter
      id         text  the entity
      state      word  where it goes
      retries    int   how often it was revived, this time included
      most       int   states a pool may have
      again      flag  1: the client lost the reply to this very call and repeats it
                       then its metadata: field, JSON, …
GIVES 1 it is back, 0 the dead letter does not exist any more, -1 the pool has too many states, -2 the pool has an entity of
      that name already ]]
-- @include store/ended_key
-- @include store/alike_key
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- @include engine/tally
-- @include pools/entity
-- @include dead/error_groups
if again == '1' and redis.call('HGET', entity_key(id), '@retries') == retries then return 1 end
if not redis.call('ZSCORE', dead, letter) or redis.call('EXISTS', ended_key(letter)) == 0 then return 0 end
if redis.call('ZSCORE', entities, id) then return -2 end
if is_one_too_many(state, most) then return -1 end
leave_alike(letter, redis.call('GETRANGE', ended_key(letter), 0, HEAD - 1))
redis.call('ZREM', dead, letter)
redis.call('DEL', ended_key(letter), entity_key(id))
enter(id, state)
redis.call('HSET', entity_key(id), '@retries', retries)
for i = 8, #ARGV, 2 do write_field(id, ARGV[i], ARGV[i + 1]) end
tally('revived', 1)
return 1
