--[[ Announce members that join a workflow late to something that waits for it, before any of them can run.
KEYS  bag        hash  what a workflow, or a job that waits for its members, carries with it
ARGV  parent     id    the member that brings them: while it has not ended, nothing is over
                       then per new member: id, what is known of it (JSON), for the workflow's own list, and the proof that
                       it may join, or ''
GIVES 1, or 0: it is too late, for it has ended or may run already ]]
-- @include store/now
local known = redis.call('HMGET', bag, 'life', 'late', 'h:' .. parent)
if known[1] ~= 'waits' and known[1] ~= 'cut' and known[1] ~= 'open' then return 0 end
if known[3] and not string.match(known[3], '^%d+ 1') then return 0 end
local late = known[2] or ''
local new = 0
for i = 2, #ARGV, 3 do
  local id = ARGV[i]
  if redis.call('HSETNX', bag, 'h:' .. id, '0 1 0 expected ' .. string.format('%d', now)) == 1 then
    new = new + 1
    late = late .. id -- their results come behind the others, in this order
    if known[1] == 'open' then redis.call('HSET', bag, 'x:' .. id, ARGV[i + 1]) end
    if ARGV[i + 2] ~= '' then redis.call('HSET', bag, 'l:' .. id, ARGV[i + 2]) end
  end
end
redis.call('HINCRBY', bag, 'open', new)
redis.call('HSET', bag, 'late', late)
return 1
