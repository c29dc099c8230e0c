--[[ Take the lock for sweeping, purging or health checks, unless another owner has it.
KEYS  sweeping   string  its owner
ARGV  owner      id    who wants it
      lock_ms    int   for so long
GIVES 1 if it is the caller's now ]]
if redis.call('EXISTS', sweeping) == 1 then return 0 end
redis.call('DEL', sweeping) -- as in store/lua/include/afford.lua: purges make room on a full server, and health checks report it
redis.call('SET', sweeping, owner, 'PX', lock_ms)
return 1
