--[[ End the leases of jobs whose holder is known to be dead: the next turn takes them back, and one idle worker is
called for it. Nobody need wait for a lease to run out when somebody saw the worker die.
KEYS  running    zset  lease deadline
      claims     hash  "token worker since"
      idle       zset  workers that wait
      bell       -     prefix of the workers' bells
ARGV  n          int   how many: id, token
GIVES how many leases were ended ]]
-- @include now
-- @include afford
-- @include wake
local ended = 0
for i = 2, #ARGV, 2 do
  local claim = redis.call('HGET', claims, ARGV[i])
  if claim and string.match(claim, '^%d+') == ARGV[i + 1] then
    -- 1 (ABANDONED in next.lua), not 0: asked when to look again, others are told this time, and 0 says never
    ended = ended + redis.call('ZADD', running, 'XX', 'CH', 1, ARGV[i])
  end
end
if ended > 0 then
  local worker = wake()
  if worker then ring(worker, '') end
end
return ended
