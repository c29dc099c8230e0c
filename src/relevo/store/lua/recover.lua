--[[ Take jobs back whose lease ended long ago, as a turn does with those that ended just now: for whoever asks to decide about.
KEYS  jobs running claims story stats
      sweeping   string  who purges this queue
ARGV  keep_ms    int   how long the counters live without traffic
      owner      id    who purges: nobody else may meanwhile
      lock_ms    int   how long nobody else may
      lease_ms   int   how long they are lent
      limit_ms   int   for how long their lease must have ended
                       then per job: id, the end of its lease
GIVES per job [claim, body, story], or [] if somebody else has it or took it back. Nothing at all: somebody else purges ]]
-- @include now
-- @include afford
-- @include tally
-- @include lost
if redis.call('GET', sweeping) ~= owner then return {} end
redis.call('PEXPIRE', sweeping, lock_ms)
local said, lost = {}, 0
for i = 6, #ARGV, 2 do
  local id = ARGV[i]
  local ends, body = redis.call('ZSCORE', running, id), redis.call('HGET', jobs, id)
  said[#said + 1] = {}
  if body and ends and tonumber(ends) == tonumber(ARGV[i + 1]) and now - ends >= tonumber(limit_ms) then
    said[#said] = { take_back(id, string.format('%d', now + lease_ms)), body, redis.call('HGET', story, id) or '' }
    lost = lost + 1
  end
end
if lost > 0 then
  tally('lost', lost)
  tally('purged_running', lost)
end
return said
