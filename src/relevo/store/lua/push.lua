--[[ Put jobs on their queue, each unless its id or its name is taken.

With a worker waiting and nothing queued before it, a single job is claimed for that worker at once and its body put
on the worker's bell: one round trip saved, and no other worker woken for nothing.

KEYS  jobs       hash  bodies of living jobs
      ready      zset  priority and fair tag
      scheduled  zset  due time * 1024 + priority
      running    zset  lease deadline
      claims     hash  "token worker since" of jobs that were handed out
      groups     hash  "weight group" of scheduled jobs that have a group
      clock      hash  virtual times of the fair tags
      names      hash  name -> the living job that has it
      unique     -     prefix of names held for a time
      ended      -     prefix of records of finished jobs
      stats      hash  counters
      idle       zset  workers that wait, until when they are believed alive
      bell       -     prefix of the workers' bells
ARGV  again      flag  1: the client lost the reply to this very call and repeats it
      lease_ms   int   lease of a job handed over directly
      keep_ms    int   how long the counters live without traffic
      shape      word  plain: id, priority, body per job; rich: also when, group, weight, name, scope
GIVES rich: per job the id that has the name (its own: stored); plain: how many were stored ]]
-- @include now
-- @include wake
-- @include place
-- @include tally

local function taken(id) -- only asked of repeated calls: ids are made by the client and never used twice
  return again == '1' and (redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended .. ':' .. id) == 1)
end
local function hand_over(worker, id, body)
  redis.call('ZADD', running, now + lease_ms, id)
  redis.call('HSET', claims, id, '1 ' .. worker .. ' ' .. now)
  ring(worker, 'j' .. id .. body)
end
local function wake_for(n)
  for _ = 1, math.min(n, 64) do
    local worker = wake()
    if not worker then return end
    ring(worker, '')
  end
end

if shape == 'plain' then
  if #ARGV == 7 then
    local id, priority, body = ARGV[5], ARGV[6], ARGV[7]
    if taken(id) then return 0 end
    redis.call('HSET', jobs, id, body)
    tally('enqueued', 1)
    local worker = wake()
    if worker and redis.call('ZCARD', ready) == 0 then
      hand_over(worker, id, body)
    else
      redis.call('ZADD', ready, place(priority, '', 1), id)
      keep_marks()
      if worker then ring(worker, '') end
    end
    return 1
  end
  local bodies, entries, stored = {}, {}, 0
  for i = 5, #ARGV, 3 do
    local id = ARGV[i]
    if not taken(id) then
      stored = stored + 1
      bodies[stored * 2 - 1], bodies[stored * 2] = id, ARGV[i + 2]
      entries[stored * 2 - 1], entries[stored * 2] = place(ARGV[i + 1], '', 1), id
    end
  end
  for i = 1, stored * 2, 4000 do
    local last = math.min(i + 3999, stored * 2)
    redis.call('HSET', jobs, unpack(bodies, i, last))
    redis.call('ZADD', ready, unpack(entries, i, last))
  end
  if stored > 0 then
    keep_marks()
    tally('enqueued', stored)
    wake_for(stored)
  end
  return stored
end

local owners, readied, stored = {}, 0, 0
local head = redis.call('ZRANGE', scheduled, 0, 0)[1]
for i = 5, #ARGV, 8 do
  local id, priority, body, when = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local group, weight, name, scope = ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7]
  local owner = taken(id) and id
  if name ~= '' and not owner then
    local for_ms = tonumber(scope)
    if for_ms then
      owner = redis.call('GET', unique .. ':' .. name)
      if not owner then redis.call('SET', unique .. ':' .. name, id, 'PX', for_ms) end
    else
      owner = redis.call('HGET', names, name)
      if owner and redis.call('HEXISTS', jobs, owner) == 0 then owner = false end
      if owner and scope == 'queued' and redis.call('ZSCORE', running, owner) then owner = false end
      if not owner then redis.call('HSET', names, name, id) end
    end
  end
  owners[#owners + 1] = owner or id
  if not owner then
    stored = stored + 1
    redis.call('HSET', jobs, id, body)
    local due = 0
    if string.sub(when, 1, 1) == '+' then due = now + tonumber(string.sub(when, 2))
    elseif when ~= '' then due = tonumber(when) end
    if due > now then
      redis.call('ZADD', scheduled, due * 1024 + priority, id)
      if group ~= '' then redis.call('HSET', groups, id, weight .. ' ' .. group) end
    else
      redis.call('ZADD', ready, place(priority, group, weight), id)
      readied = readied + 1
    end
  end
end
if stored > 0 then
  keep_marks()
  tally('enqueued', stored)
  -- A new earliest due time must reach one idle worker, whose timer was set for a later one.
  if redis.call('ZRANGE', scheduled, 0, 0)[1] ~= head then readied = math.max(readied, 1) end
  wake_for(readied)
end
return owners
