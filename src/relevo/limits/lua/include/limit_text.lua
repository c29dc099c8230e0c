-- The stored form of a limit: 'concurrency rate burst paused', such as '2 10/s 10 0', '-' for what is not limited. Paused is
-- 0, 1, or the time at which the pause ends; for a task whose breaker is open, ' time/n/ms' follows: when it lets a probe
-- start, how many failed already, and its longest rest. Times of buckets are whole microseconds, which are exact in a double:
-- `every` is the time between two tokens.
local NO_LIMIT = '- - - 0'
local SPANS = { s = 1000000, m = 60000000, h = 3600000000, d = 86400000000 }
local function every_of(rate)
  local count, unit = string.match(rate, '^(.+)/(%a)$')
  return count and math.max(1, math.floor(SPANS[unit] / count + 0.5))
end
local function is_number(text) -- from 1 on
  local number = tonumber(text) or 0
  return number >= 1 and number < 1e15
end
-- A limit that relevo did not write counts as none, and is removed.
local function is_readable(concurrency, rate, burst, paused_for, open)
  if not concurrency or concurrency ~= '-' and not is_number(concurrency) then return false end
  if rate ~= '-' then
    local count, unit = string.match(rate, '^([%d.e+-]+)/([smhd])$')
    count = tonumber(count) or 0
    if not unit or count <= 0 or count > 1e15 or not is_number(burst) then return false end
  end
  return tonumber(paused_for) < 1e15 and (open == '' or string.find(open, '^ %d+/%d+/?%d*$')) ~= nil
end
local function terms_of(text, name)
  local concurrency, rate, burst, paused_for, open = string.match(text or NO_LIMIT, '^(%S+) (%S+) (%S+) (%d+)(.*)$')
  if not is_readable(concurrency, rate, burst, paused_for, open) then
    -- @include store/note_fault
    note_fault(limits, ' ' .. name, 'no limit that relevo wrote, removed: ' .. string.sub(text, 1, 80))
    redis.call('HDEL', limits, name)
    return '-', '-', '-', '0', '', true
  end
  if tonumber(paused_for) > 1 and tonumber(paused_for) <= now then paused_for = '0' end -- expired
  return concurrency, rate, burst, paused_for, open
end
local function keep_terms(name, concurrency, rate, burst, paused_for, open)
  local text = concurrency .. ' ' .. rate .. ' ' .. burst .. ' ' .. paused_for .. open
  if text == NO_LIMIT then redis.call('HDEL', limits, name) else redis.call('HSET', limits, name, text) end
  if paused_for == '0' and name ~= 'q:' then redis.call('HDEL', pauses, name) end -- the pause of a whole queue is in `paused`
  return text ~= NO_LIMIT and text
end
