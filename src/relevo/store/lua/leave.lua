--[[ A worker stops waiting: nobody hands it a job any more. What was handed over before is given back to it to settle.
KEYS  idle       zset  workers that wait
      paused     hash  workers that asked while the queue was paused
      bell       -     prefix of the workers' bells
ARGV  worker     id    who leaves
GIVES the messages left on its bell ]]
redis.call('ZREM', idle, worker)
redis.call('HDEL', paused, worker)
local left = redis.call('LRANGE', bell .. ':' .. worker, 0, -1)
redis.call('DEL', bell .. ':' .. worker)
return left
