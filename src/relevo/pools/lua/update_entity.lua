--[[ Change the metadata of an entity that is in some state.
KEYS  entities states placed entity
ARGV  id         text  the entity
      fields     int   fields an entity may have
                       then field, JSON ('': the field goes), …
GIVES 1 done, 0 the pool has no such entity, -3 it would have too many fields ]]
-- @include store/placed_key
-- @include store/entity_key
-- @include store/now
-- @include pools/entity
-- @include pools/count_fields
if not redis.call('ZSCORE', entities, id) then return 0 end
if is_too_much(id, 3, fields) then return -3 end
for i = 3, #ARGV, 2 do write_field(id, ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', entities, string.format('%d', now), id)
return 1
