--[[ Count jobs that ran already when their group got its limit: they hold places like those that start from now on.
KEYS  jobs       hash  bodies of living jobs
      running    zset  lease deadline
      limits     hash  group -> its limit
      holding    hash  id -> group of jobs that hold a place, '#' and the group -> how many
ARGV  name       text  the group, as limits name it
                       then the ids
GIVES how many were not counted before ]]
-- @include group
if redis.call('HEXISTS', limits, name) == 0 then return 0 end
local adopted = 0
for i = 2, #ARGV do
  local body = redis.call('ZSCORE', running, ARGV[i]) and redis.call('HGET', jobs, ARGV[i])
  if body and group_of(body) == name then adopted = adopted + redis.call('HSETNX', holding, ARGV[i], name) end
end
if adopted > 0 then redis.call('HINCRBY', holding, '#' .. name, adopted) end
return adopted
