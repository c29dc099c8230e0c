--[[ End the leases of jobs whose holder is known to be dead, instead of waiting for their deadline: the next turn takes them
back, and one idle worker is woken for it.
KEYS  running    zset  lease deadline
      claims     hash  "token worker since"
      idle       zset  workers that wait
      bell       -     prefix of the workers' bells
ARGV  n          int   how many: id, token
GIVES how many leases were ended ]]
-- @include store/now
-- @include store/afford
-- @include engine/wake_worker
local ended = 0
for i = 2, #ARGV, 2 do
  local claim = redis.call('HGET', claims, ARGV[i])
  if claim and string.match(claim, '^%d+') == ARGV[i + 1] then
    -- 1 (ABANDONED in engine/include/next_due.lua), not 0: this value is also the time at which to look again, and there 0 means never
    ended = ended + redis.call('ZADD', running, 'XX', 'CH', 1, ARGV[i])
  end
end
if ended > 0 then
  local worker = wake()
  if worker then ring(worker, '') end
end
return ended
