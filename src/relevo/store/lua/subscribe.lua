--[[ Register subscriptions, or renew them: whoever serves one says so every few seconds.
KEYS  subscriptions  hash  queue -> the subscription
      queues         zset  queues of the bus, when they were last used
ARGV  most       int   subscriptions there may be: publishing looks at all of them
      list_ms    int   how long the list of queues lives without use
                       then per subscription: queue, what is said of it as JSON without the closing brace, its lease in
                       ms (0: it is durable)
GIVES per subscription 'new', 'renewed', 'changed' (other options than before), or 'refused' (there are too many) ]]
-- @include now
redis.call('ZREM', queues, '') -- as in include/afford.lua: leases must not end because the server is full
local now_text, count, said = string.format('%d', now), redis.call('HLEN', subscriptions), {}
for i = 3, #ARGV, 3 do
  local queue, text, lease = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2])
  local old = redis.call('HGET', subscriptions, queue)
  if not old and count >= tonumber(most) then said[#said + 1] = 'refused'
  else
    if not old then
      count = count + 1
      said[#said + 1] = 'new'
    else
      said[#said + 1] = string.sub(old, 1, #text + 1) == text .. ',' and 'renewed' or 'changed'
    end
    redis.call('HSET', subscriptions, queue, text
      .. ',"created_ms":' .. (old and string.match(old, '"created_ms":(%d+)') or now_text) .. ',"seen_ms":' .. now_text
      .. ',"until_ms":' .. (lease > 0 and string.format('%d', now + lease) or '0') .. ',"warned":false}')
    redis.call('ZADD', queues, now_text, queue)
  end
end
if #said > 0 then redis.call('PEXPIRE', queues, list_ms) end
return said
