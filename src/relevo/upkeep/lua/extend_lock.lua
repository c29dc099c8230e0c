--[[ Extend a lock, unless another owner has it by now.
KEYS  sweeping   string  its owner
ARGV  owner      id    who extends it
      lock_ms    int   for so long from now
GIVES 1 if it is still the caller's ]]
if redis.call('GET', sweeping) ~= owner then return 0 end
return redis.call('PEXPIRE', sweeping, lock_ms)
