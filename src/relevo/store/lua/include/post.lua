-- The outbox: what must happen in another queue is written down here, in the step that causes it. A relay carries it
-- there, as often as it takes; who hears it twice knows by its number.
local function post(letter, text, at)
  redis.call('HSET', letters, letter, text)
  redis.call('ZADD', errands, at, letter)
end
-- An edge `>p7:<id><queue>` leads to something that depends on this one, under the policy p, and takes its result as
-- its input 7 (x: behind the others, for it joined late). Numbers grow with every end (2 x token) and every revival (one less than the next end).
local function announce(id, state, number, edges, record)
  if edges == '' then return end
  local is_taken = state == 'done' and string.find(edges, '>%a[%dx]')
  post(id .. '.' .. number, state .. ' ' .. number .. ' ' .. id .. '\n' .. edges .. '\n' .. (is_taken and record or ''), now)
end
