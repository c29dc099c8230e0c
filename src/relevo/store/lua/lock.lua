--[[ Be the one who sweeps, purges or looks after health, unless somebody else is.
KEYS  sweeping   string  who has it
ARGV  owner      id    who wants it
      lock_ms    int   for so long
GIVES 1 if it is ours now ]]
if redis.call('EXISTS', sweeping) == 1 then return 0 end
redis.call('DEL', sweeping) -- as in include/afford.lua: whoever purges makes room on a full server, and who looks tells of it
redis.call('SET', sweeping, owner, 'PX', lock_ms)
return 1
