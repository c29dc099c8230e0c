--[[ Note where a purge stopped, so that the next one goes on from there, or what it saw; or forget it.
KEYS  walk       -     the place among the ready jobs; with `part` behind it, something else
ARGV  part       text  '', ':strays' or ':held'
      text       text  what to note; '': forget it
      live_ms    int   for so long
GIVES 1 ]]
redis.call('DEL', walk .. part) -- first, as in include/afford.lua
if text ~= '' then redis.call('SET', walk .. part, text, 'PX', live_ms) end
return 1
