--[[ Register subscriptions, or renew them: each server of one does so every few seconds.
KEYS  subscriptions  hash  queue -> the subscription
      topics         hash  pattern -> the queues subscribed to it
      queues         zset  queues of the bus, when they were last used
ARGV  most       int   subscriptions there may be
      list_ms    int   how long the list of queues lives without use
                       then per subscription: queue, pattern, its options as JSON without the closing brace, its
                       lease in ms (0: it is durable)
GIVES per subscription 'new', 'renewed', 'changed' (other options than before), or 'refused' (there are too many) ]]
-- @include store/now
redis.call('ZREM', queues, '') -- as in store/lua/include/afford.lua: leases must not end because the server is full
-- @include bus/subscription
local now_text, count, reply = string.format('%d', now), redis.call('HLEN', subscriptions), {}
for i = 3, #ARGV, 4 do
  local queue, pattern, text, lease = ARGV[i], ARGV[i + 1], ARGV[i + 2], tonumber(ARGV[i + 3])
  local old = redis.call('HGET', subscriptions, queue)
  if not old and count >= tonumber(most) then reply[#reply + 1] = 'refused'
  else
    local is_same = old and string.sub(old, 1, #text + 1) == text .. ','
    reply[#reply + 1] = not old and 'new' or is_same and 'renewed' or 'changed'
    if not old then count = count + 1 end
    if not is_same then
      if old then strike(pattern_in(old), queue) end
      strike(pattern, queue) -- left over if another program removed the subscription
      local others = redis.call('HGET', topics, pattern)
      redis.call('HSET', topics, pattern, (others and others .. ' ' or '') .. queue)
    end
    redis.call('HSET', subscriptions, queue, text
      .. ',"created_ms":' .. (old and string.match(old, '"created_ms":(%d+)') or now_text) .. ',"seen_ms":' .. now_text
      .. ',"until_ms":' .. (lease > 0 and string.format('%d', now + lease) or '0') .. ',"warned":false}')
    redis.call('ZADD', queues, now_text, queue)
  end
end
if #reply > 0 then redis.call('PEXPIRE', queues, list_ms) end
return reply
