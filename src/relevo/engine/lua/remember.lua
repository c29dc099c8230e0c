--[[ Note where a piece of upkeep stopped, so that the next run goes on from there, or what it found; or forget it.
KEYS  walk       string  the position among the ready jobs; or walk:strays, walk:held
ARGV  text       text  what to note; '': forget it
      live_ms    int   for so long
GIVES 1 ]]
redis.call('DEL', walk) -- first, as in store/lua/include/afford.lua
if text ~= '' then redis.call('SET', walk, text, 'PX', live_ms) end
return 1
