--[[ A worker says that it lives.
KEYS  worker     string  what it says of itself
ARGV  live_ms    int   for so long it is believed
      about      json  what it says
GIVES 1 ]]
redis.call('DEL', worker) -- first, as in include/afford.lua: presence must be said on a full server, too
redis.call('SET', worker, about, 'PX', live_ms)
return 1
