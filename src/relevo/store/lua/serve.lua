--[[ A worker says that it serves a queue of a service, and which actions; or that it goes.
KEYS  instances  zset  who serves the queue, until when it is believed alive
      offers     hash  action -> until when, description; `@worker` -> what it says of itself
ARGV  worker     id    who serves
      serve_ms   int   how long it is believed; 0: it goes
      known_ms   int   how long descriptions outlive the last who serves them
      about      json  what the worker says of itself
                       then per action: name, description
GIVES how many serve it ]]
-- @include now
redis.call('ZREM', instances, '') -- as in include/afford.lua: presence must be said on a full server, too
for _, silent in ipairs(redis.call('ZRANGE', instances, '-inf', '(' .. now, 'BYSCORE', 'LIMIT', 0, 100)) do
  redis.call('HDEL', offers, '@' .. silent)
  redis.call('ZREM', instances, silent)
end
if serve_ms == '0' then
  redis.call('ZREM', instances, worker)
  redis.call('HDEL', offers, '@' .. worker)
else
  local until_ms = string.format('%d', now + serve_ms)
  redis.call('ZADD', instances, until_ms, worker)
  redis.call('PEXPIRE', instances, serve_ms * 2)
  redis.call('HSET', offers, '@' .. worker, about)
  for i = 5, #ARGV, 2 do redis.call('HSET', offers, ARGV[i], until_ms .. ' ' .. ARGV[i + 1]) end
  redis.call('PEXPIRE', offers, known_ms)
end
return redis.call('ZCARD', instances)
