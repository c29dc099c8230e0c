--[[ Put names on a list that ends by itself when nobody uses it any more.
KEYS  list       zset  name, when it was last heard of
ARGV  now_ms     int   by the clock of who asks: it only tells old entries from new ones
      ttl        int   how long the list lives without use, ms
                       then the names
GIVES how many are on the list ]]
for i = 3, #ARGV do redis.call('ZADD', list, now_ms, ARGV[i]) end
redis.call('PEXPIRE', list, ttl)
return redis.call('ZCARD', list)
