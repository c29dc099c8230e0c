--[[ Give a lock back, unless somebody else has it by now.
KEYS  sweeping   string  who has it
ARGV  owner      id    who gives it back
GIVES 1 if it was there to be given back ]]
if redis.call('GET', sweeping) ~= owner then return 0 end
return redis.call('DEL', sweeping)
