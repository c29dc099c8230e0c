--[[ Take back jobs whose lease ended long ago, as a turn does with those that ended just now: the caller decides about them.
KEYS  jobs running claims story stats
      leader     string  who leads the upkeep of this queue
ARGV  keep_ms    int   how long the counters live without traffic
      owner      id    who purges, and must lead
      lead_ms    int   how long the lead lasts from now
      lease_ms   int   lease of the jobs that are taken back
      limit_ms   int   for how long their lease must have ended
                       then per job: id, the end of its lease
GIVES per job [claim, body, story], or [] if another worker took it back. Empty: another process leads ]]
-- @include store/now
-- @include store/afford
-- @include engine/tally
-- @include engine/take_back
if redis.call('GET', leader) ~= owner then return {} end
redis.call('PEXPIRE', leader, lead_ms)
local reply, lost = {}, 0
for i = 6, #ARGV, 2 do
  local id = ARGV[i]
  local ends, body = redis.call('ZSCORE', running, id), redis.call('HGET', jobs, id)
  reply[#reply + 1] = {}
  if body and ends and tonumber(ends) == tonumber(ARGV[i + 1]) and now - ends >= tonumber(limit_ms) then
    reply[#reply] = { take_back(id, string.format('%d', now + lease_ms)), body, redis.call('HGET', story, id) or '' }
    lost = lost + 1
  end
end
if lost > 0 then
  tally('lost', lost)
  tally('purged_running', lost)
end
return reply
