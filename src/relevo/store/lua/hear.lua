--[[ Tell what depends on other jobs, in this queue, what became of them. Those that may run now are queued, those that
may not any more are cancelled, those that were cancelled for a parent that lives again wait again, and workflows whose
last member ended end. Telling it twice changes nothing.
KEYS  jobs ready scheduled running waiting carried claims story groups clock names waiters stats idle bell errands letters
      ended done cancelled
ARGV  keep_ms    int   how long the counters live without traffic
      done_max   int   unused here
      dead_max   int   records kept
      gates      int   letters that need not be delivered any more, their ids first
                       then per report: child, parent, number, state, policy, index, input
GIVES 1 if there is something to relay from this queue now, else 0 ]]
-- @include now
-- @include afford
-- @include wake
-- @include place
-- @include put
-- @include tally
-- @include end
-- @include cancelled
-- @include revival
-- @include hear
gates = tonumber(gates)
for i = 5, 4 + gates do
  redis.call('ZREM', errands, ARGV[i])
  redis.call('HDEL', letters, ARGV[i])
end
local order, why, as = {}, {}, {}
for i = 5 + gates, #ARGV, 7 do
  local child, parent, state = ARGV[i], ARGV[i + 1], ARGV[i + 3]
  if hear(child, parent, ARGV[i + 2], state, ARGV[i + 4], ARGV[i + 5], ARGV[i + 6]) and not why[child] then
    order[#order + 1] = child
    -- Whose gate was never opened never came to be, and so it is for those that depend on it.
    as[child] = parent == 'gate' and 'lapsed' or 'cancelled'
    why[child] = parent == 'gate' and 'whoever made it died before all of it was in place' or 'it depends on ' .. parent .. ', which is ' .. state
  end
end
for _, child in ipairs(order) do judge(child, why[child], as[child]) end
keep_marks()
if cancelled_now > 0 then tally('cancelled', cancelled_now) end
for _ = 1, math.min(readied, 64) do
  local worker = wake()
  if not worker then break end
  ring(worker, '')
end
local first = redis.call('ZRANGE', errands, 0, 0, 'WITHSCORES')[2]
return first and tonumber(first) <= now and 1 or 0
