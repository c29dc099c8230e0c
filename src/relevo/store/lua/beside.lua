--[[ Store the data of a message beside it, before it is sent. If it never is, the data ends by itself.
KEYS  carried    -     prefix of what jobs carry with them
ARGV  id         id    the message
      unsent_ms  int   how long the data waits for the message
      data       json  its data
GIVES 1 ]]
redis.call('HSET', carried .. ':' .. id, 'life', 'freed', 'open', 0, 'bad', 0, 'claim', data)
return redis.call('PEXPIRE', carried .. ':' .. id, unsent_ms)
