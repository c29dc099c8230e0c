--[[ Tell what depends on other jobs, in this queue, what became of them. Those that may run now are queued, those that
may not any more are cancelled, those that were cancelled for a parent that lives again wait again, and workflows whose
last member ended end. Telling it twice changes nothing.
KEYS  jobs ready scheduled running waiting carried claims story groups clock names waiters stats idle bell errands letters
      instances paused limits parking unique ended done cancelled notes
ARGV  keep_ms    int   how long the counters live without traffic
      done_max   int   unused here
      dead_max   int   records kept
      start      text  letter that opens the gates of a workflow, which is the first child here; '': none
      start_ms   int   when that letter is due: its maker opens the gates itself, and another process does only if it died
      gates      int   letters that need not be delivered any more, their ids first
                       then per report: child, parent, number, state, policy, index, input, and the signature of the child's
                       end, should it be cancelled for this, or ''
GIVES how many reports were news, 1 if there is something to relay from this queue now ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/unique_key
-- @include store/alike_key
-- @include store/now
-- @include store/afford
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/place_waiting
-- @include engine/tally
-- @include engine/end_job
-- @include engine/cancelled_record
-- @include engine/revival
-- @include engine/stick_to_worker
-- @include workflows/dependents
-- @include engine/outbox_due
gates = tonumber(gates)
for i = 7, 6 + gates do
  redis.call('ZREM', errands, ARGV[i])
  redis.call('HDEL', letters, ARGV[i])
end
local order, heard, cause = {}, 0, {}
for i = 7 + gates, #ARGV, 8 do
  local child, parent, state, policy = ARGV[i], ARGV[i + 1], ARGV[i + 3], ARGV[i + 4]
  local is_bad = hear(child, parent, ARGV[i + 2], state, policy, ARGV[i + 5], ARGV[i + 6])
  if is_bad then
    heard = heard + 1
    if not cause[child] then order[#order + 1], cause[child] = child, {} end
    if is_bad > 0 then cause[child] = { parent, state, policy, ARGV[i + 7] } end
  end
end
for _, child in ipairs(order) do judge(child, unpack(cause[child])) end
keep_marks()
if cancelled_now > 0 then tally('cancelled', cancelled_now) end
for _ = 1, math.min(readied, 64) do
  local worker = wake()
  if not worker then break end
  ring(worker, '')
end
if start ~= '' and heard > 0 then post(ARGV[7 + gates] .. '.start', start, now + start_ms) end
return { heard, errand_is_due() }
