--[[ Lead a piece of upkeep: one process at a time, until it leaves or its time has passed.
KEYS  leader     string  its owner
ARGV  verb       word  take: unless another process leads; keep, leave: if the caller leads
      owner      id    the caller
      lead_ms    int   take, keep: for so long from now
GIVES 1 if it took effect ]]
local known = redis.call('GET', leader)
if verb == 'take' then
  if known then return 0 end
  redis.call('DEL', leader) -- as in store/lua/include/afford.lua: purges make room on a full server, and health checks report it
  redis.call('SET', leader, owner, 'PX', lead_ms)
  return 1
end
if known ~= owner then return 0 end
if verb == 'leave' then return redis.call('DEL', leader) end
return redis.call('PEXPIRE', leader, lead_ms)
