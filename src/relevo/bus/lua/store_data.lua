--[[ Store the data of a message beside it, before it is sent. If it never is, the data ends by itself.
KEYS  bag        hash  what the message carries with it
ARGV  unsent_ms  int   how long the data waits for the message
      data       json  its data
GIVES 1 ]]
redis.call('HSET', bag, 'life', 'freed', 'open', 0, 'bad', 0, 'claim', data)
return redis.call('PEXPIRE', bag, unsent_ms)
