--[[ Keep how far a running job has come, unless its lease was lost: somebody else may have come further by now.
KEYS  running    zset  lease deadline
      claims     hash  "token worker since"
      carried    -     prefix of what jobs carry with them
ARGV  id         id    the job
      token      int   that of whoever runs it
      field      text  s:<name> the result of a step, p:<name> the position of a loop
      value      json  what is kept of it
GIVES 1 it is kept, 0 the lease is lost ]]
-- @include afford
-- A job that went back keeps its token until it is handed out again, so the token alone does not tell.
local claim = redis.call('ZSCORE', running, id) and redis.call('HGET', claims, id)
if not claim or string.match(claim, '^%d+') ~= token then return 0 end
redis.call('HSET', carried .. ':' .. id, field, value)
return 1
