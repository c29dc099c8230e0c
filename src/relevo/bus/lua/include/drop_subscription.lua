-- Remove a subscription. What is left in its queue, which may be in another slot, is removed by the relay after the events
-- that are on their way have arrived.
local function dismiss(queue, text)
  redis.call('HDEL', subscriptions, queue)
  strike(pattern_in(text), queue)
  local message = 'closed.' .. string.format('%d', now) .. '.' .. redis.sha1hex(queue)
  redis.call('HSET', letters, message, 'closed\n' .. queue .. '\n' .. string.format('%d', number_in(text, 'created_ms')))
  redis.call('ZADD', errands, now + close_ms, message)
end
