--[[ Change the metadata of an entity that is in some state.
KEYS  entities states placed entity
ARGV  id         text  the entity
                       then field, JSON ('': the field goes), …
GIVES 1 done, 0 the pool has no such entity ]]
-- @include now
-- @include pool
if not redis.call('ZSCORE', entities, id) then return 0 end
for i = 2, #ARGV, 2 do write_field(id, ARGV[i], ARGV[i + 1]) end
redis.call('ZADD', entities, string.format('%d', now), id)
return 1
