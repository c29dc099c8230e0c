--[[ Release a lock, unless another owner has it by now.
KEYS  sweeping   string  its owner
ARGV  owner      id    who releases it
GIVES 1 if it was released ]]
if redis.call('GET', sweeping) ~= owner then return 0 end
return redis.call('DEL', sweeping)
