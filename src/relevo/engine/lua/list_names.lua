--[[ Put names on a list that expires when it is no longer used.
KEYS  list       zset  name, when it was last used
ARGV  ttl        int   TTL of the list without use, ms
                       then the names
GIVES how many are on the list ]]
-- @include store/now
redis.call('PEXPIRE', list, ttl) -- first, as in store/lua/include/afford.lua: clients that make room on a full server need it, too
for i = 2, #ARGV do redis.call('ZADD', list, string.format('%d', now), ARGV[i]) end
redis.call('PEXPIRE', list, ttl)
return redis.call('ZCARD', list)
