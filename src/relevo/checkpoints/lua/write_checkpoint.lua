--[[ Keep how far a running job has come, unless its lease was lost: another worker may be further by now.
KEYS  running    zset  lease deadline
      claims     hash  "token worker since"
      carried    -     prefix of what jobs carry with them
ARGV  id         id    the job
      token      int   of the lease
      field      text  s:<name> the result of a step, p:<name> the position of a loop
      value      json  its value
GIVES 1 it is kept, 0 the lease is lost ]]
-- @include store/carried_key
-- @include store/afford
-- A job that was given back keeps its token until it is handed out again, so the token alone is not enough.
local claim = redis.call('ZSCORE', running, id) and redis.call('HGET', claims, id)
if not claim or string.match(claim, '^%d+') ~= token then return 0 end
redis.call('HSET', carried_key(id), field, value)
return 1
