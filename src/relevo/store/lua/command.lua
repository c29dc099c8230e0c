--[[ One plain command again, after it met a key of another type: guard.lua sets that key aside.
KEYS  -
ARGV                   the command and its arguments
GIVES as the command ]]
return redis.call(unpack(ARGV))
