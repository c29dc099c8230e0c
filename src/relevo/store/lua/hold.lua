--[[ Keep a lock for longer, unless somebody else has it by now.
KEYS  sweeping   string  who has it
ARGV  owner      id    who keeps it
      lock_ms    int   for so long from now
GIVES 1 if it is still ours ]]
if redis.call('GET', sweeping) ~= owner then return 0 end
return redis.call('PEXPIRE', sweeping, lock_ms)
