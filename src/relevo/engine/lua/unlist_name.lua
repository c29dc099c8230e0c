--[[ Take a queue off a list of queues, unless it was used since.
KEYS  list       zset  name, when it was last used
ARGV  name       text  the queue
      seen_ms    int   when it was last used, as far as the caller saw
GIVES 1 if it was taken off ]]
local used = redis.call('ZSCORE', list, name)
if not used or tonumber(used) > tonumber(seen_ms) then return 0 end
return redis.call('ZREM', list, name)
