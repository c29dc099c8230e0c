--[[ Add what a worker measured to the sums of a queue's tasks. A task for which there is no room is counted under 'other'.
KEYS  timings    hash  "slot task" -> sum, "at task" -> when it last ran
ARGV  live_ms    int   TTL of sums without new ones, of one task and of all
      most       int   from so many fields on, further tasks count under 'other'
                       then for each task its name, and its sums as "slot n slot n ..."
GIVES how many fields there are ]]
-- @include store/now
live_ms, most = tonumber(live_ms), tonumber(most)
local has_looked = false
local function forget_silent()
  has_looked = true
  local fields, silent, gone = redis.call('HGETALL', timings), {}, {}
  for i = 1, #fields, 2 do
    local task = string.match(fields[i], '^at (.*)$')
    if task and tonumber(fields[i + 1]) < now - live_ms then silent[task] = true end
  end
  for i = 1, #fields, 2 do
    if silent[string.match(fields[i], '^%w+ (.*)$') or ''] then gone[#gone + 1] = fields[i] end
  end
  for i = 1, #gone do redis.call('HDEL', timings, gone[i]) end
end
local function is_new(task)
  return redis.call('HEXISTS', timings, 'at ' .. task) == 0 and redis.call('HLEN', timings) >= most
end
for i = 3, #ARGV, 2 do
  local task = ARGV[i]
  if is_new(task) then
    if not has_looked then forget_silent() end
    if is_new(task) then task = 'other' end
  end
  for slot, n in string.gmatch(ARGV[i + 1], '(%w+) (%d+)') do redis.call('HINCRBY', timings, slot .. ' ' .. task, n) end
  redis.call('HSET', timings, 'at ' .. task, string.format('%d', now))
end
redis.call('PEXPIRE', timings, live_ms)
return redis.call('HLEN', timings)
