--[[ Count jobs that were running already when their queue, task or tenant got its limit: they hold places like those that
start from now on.
KEYS  jobs       hash  bodies of living jobs
      running    zset  lease deadline
      limits     hash  name -> its limit
      holding    hash  id -> names under which it holds a place, one per line; '#' and the name -> how many
ARGV  name       text  as limits name it
                       then the ids
GIVES how many were not counted before ]]
-- @include store/afford
-- @include engine/tenant
if redis.call('HEXISTS', limits, name) == 0 then return 0 end
local adopted = 0
for i = 2, #ARGV do
  local body = redis.call('ZSCORE', running, ARGV[i]) and redis.call('HGET', jobs, ARGV[i])
  if body and (name == 'q:' or tenant_of(body) == name or task_of(body) == name) then
    local held = redis.call('HGET', holding, ARGV[i])
    if not held or not string.find('\n' .. held .. '\n', '\n' .. name .. '\n', 1, true) then
      redis.call('HSET', holding, ARGV[i], (held and held .. '\n' or '') .. name)
      adopted = adopted + 1
    end
  end
end
if adopted > 0 then redis.call('HINCRBY', holding, '#' .. name, adopted) end
return adopted
