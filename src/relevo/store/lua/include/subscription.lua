-- A subscription is the JSON that subscribe.lua wrote, the pattern first. Only what is needed is read from it: publishing
-- looks at all of them. Quotes inside its texts are escaped, so a name in quotes before a colon is a name.
local function number_in(text, name) return tonumber(string.match(text, '"' .. name .. '":(%d+)') or 0) end
local function has_lapsed(text)
  local ends = number_in(text, 'until_ms')
  return ends > 0 and ends <= now
end
-- What is still in its queue, which may be in another slot, is removed by the relay, after the events that are under way.
local function dismiss(queue)
  redis.call('HDEL', subscriptions, queue)
  local letter = 'closed.' .. string.format('%d', now) .. '.' .. redis.sha1hex(queue)
  redis.call('HSET', letters, letter, 'closed\n' .. queue)
  redis.call('ZADD', errands, now + close_ms, letter)
end
