--[[ Put names on a list that ends by itself when nobody uses it any more.
KEYS  list       zset  name, when it was last heard of
ARGV  ttl        int   how long the list lives without use, ms
                       then the names
GIVES how many are on the list ]]
-- @include now
redis.call('PEXPIRE', list, ttl) -- first, as in include/afford.lua: also for those who make room on a full server
for i = 2, #ARGV do redis.call('ZADD', list, string.format('%d', now), ARGV[i]) end
redis.call('PEXPIRE', list, ttl)
return redis.call('ZCARD', list)
