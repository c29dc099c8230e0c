-- A limit as it is kept: 'concurrency rate burst paused', such as '2 10/s 10 0', '-' for what is not limited. Times of
-- buckets are whole microseconds, which are exact in a double: `every`, in which a token comes.
local NO_LIMIT = '- - - 0'
local SPANS = { s = 1000000, m = 60000000, h = 3600000000, d = 86400000000 }
local function every_of(rate)
  local count, unit = string.match(rate, '^(.+)/(%a)$')
  return count and math.max(1, math.floor(SPANS[unit] / count + 0.5))
end
local function terms_of(text) return string.match(text or NO_LIMIT, '^(%S+) (%S+) (%S+) (%d)$') end
