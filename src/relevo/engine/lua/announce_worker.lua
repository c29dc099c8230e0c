--[[ Announce that a worker is alive.
KEYS  worker     string  its record
ARGV  live_ms    int   TTL of the record
      about      json  the record
GIVES 1 ]]
redis.call('DEL', worker) -- first, as in store/lua/include/afford.lua: presence must be announced on a full server, too
redis.call('SET', worker, about, 'PX', live_ms)
return 1
