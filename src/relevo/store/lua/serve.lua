--[[ A worker says that it serves a queue of a service, and which actions; or that it goes.
KEYS  instances  zset  who serves the queue, until when it is believed alive
      offers     hash  action -> until when, description; `@worker` -> what it says of itself, `#worker` -> its actions
ARGV  worker     id    who serves
      serve_ms   int   how long it is believed; 0: it goes
      known_ms   int   how long descriptions outlive the last who serves them
      about      json  what the worker says of itself
                       then per action: name, description
GIVES how many serve it ]]
-- @include now
redis.call('ZREM', instances, '') -- as in include/afford.lua: presence must be said on a full server, too
-- Who goes takes with it what it alone served: nobody shall wait for that.
local function withdraw(who)
  local had, others = redis.call('HGET', offers, '#' .. who) or '', {}
  redis.call('ZREM', instances, who)
  redis.call('HDEL', offers, '@' .. who, '#' .. who)
  for _, one in ipairs(redis.call('ZRANGE', instances, 0, 99)) do
    for action in string.gmatch(redis.call('HGET', offers, '#' .. one) or '', '%S+') do others[action] = true end
  end
  for action in string.gmatch(had, '%S+') do
    local offer = not others[action] and redis.call('HGET', offers, action)
    if offer then redis.call('HSET', offers, action, '0' .. string.gsub(offer, '^%d+', '')) end
  end
end
for _, silent in ipairs(redis.call('ZRANGE', instances, '-inf', '(' .. now, 'BYSCORE', 'LIMIT', 0, 10)) do withdraw(silent) end
if serve_ms == '0' then withdraw(worker)
else
  local until_ms = string.format('%d', now + serve_ms)
  redis.call('ZADD', instances, until_ms, worker)
  redis.call('PEXPIRE', instances, serve_ms * 2)
  redis.call('HSET', offers, '@' .. worker, about)
  local names = {}
  for i = 5, #ARGV, 2 do
    redis.call('HSET', offers, ARGV[i], until_ms .. ' ' .. ARGV[i + 1])
    names[#names + 1] = ARGV[i]
  end
  redis.call('HSET', offers, '#' .. worker, table.concat(names, ' '))
  redis.call('PEXPIRE', offers, known_ms)
end
return redis.call('ZCARD', instances)
