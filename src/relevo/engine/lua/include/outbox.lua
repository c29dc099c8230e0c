-- The outbox: effects on another queue are written here, in the step that causes them. A relay delivers them, repeating as
-- often as needed; receivers recognise repetitions by their numbers.
local function post(message, text, at)
  redis.call('HSET', letters, message, text)
  redis.call('ZADD', errands, at, message)
end
-- An edge `>p7:<id><queue>` leads to a dependent of this job, under the policy p, and passes the result as its input 7 (x:
-- appended, for it joined late). Numbers grow with every end (2 x token) and every revival (one less than the next end).
local function announce(id, state, number, edges, record)
  if edges == '' then return end
  -- A callback (b) gets failures as well.
  local is_taken = state == 'done' and string.find(edges, '>%a[%dx]') or string.find(edges, '>b', 1, true)
  post(id .. '.' .. number, state .. ' ' .. number .. ' ' .. id .. '\n' .. edges .. '\n' .. (is_taken and record or ''), now)
end
-- Dependents that wait for a retry of a failed job wait only while a retry is possible. The number is that of a revival, so
-- that this has no effect after the revival itself.
local function no_longer_than(ttl, id, number, edges)
  if string.find(edges, '>w', 1, true) then
    post(id .. '.gone', 'discarded ' .. number .. ' ' .. id .. '\n' .. edges .. '\n', now + ttl)
  end
end
local function give_up_on(id, record) -- its record is dropped before its time
  local token, edges = string.match(record, '^{"token":(%d+),"edges":"([^"]*)"')
  if edges then no_longer_than(0, id, string.format('%d', token * 2 + 1), edges) end
end
