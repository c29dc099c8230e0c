-- A subscription is the JSON that bus/renew_subscriptions.lua wrote, the pattern first; only the needed fields are searched for. Quotes
-- inside its strings are escaped, so a name in quotes before a colon is a field name.
local function pattern_in(text) return string.match(text, '^{"pattern":"([^"]*)"') or '' end
local function number_in(text, name) return tonumber(string.match(text, '"' .. name .. '":(%d+)') or 0) end
local function has_lapsed(text)
  local ends = number_in(text, 'until_ms')
  return ends > 0 and ends <= now
end
-- `topics` has, under each pattern, the queues subscribed to it.
local function strike(pattern, queue)
  local others = {}
  for one in string.gmatch(redis.call('HGET', topics, pattern) or '', '%S+') do
    if one ~= queue then others[#others + 1] = one end
  end
  if #others > 0 then redis.call('HSET', topics, pattern, table.concat(others, ' '))
  else redis.call('HDEL', topics, pattern) end
end
