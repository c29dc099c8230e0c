--[[ Put plain requests of one process on a service's queue, all that came together. What is more than plain goes by
send.lua. A single one is handed to an idle worker if nothing is queued before it.
KEYS  jobs ready running claims clock waiters stats idle bell limits parking
      instances  zset  who serves the queue, until when it is believed alive
      offers     hash  action -> until when somebody serves it
ARGV  lease_ms   int   lease of a job handed over directly
      keep_ms    int   how long the counters live without traffic
      inbox      name  channel of the process that asks
                       then per request: id, action ('': it waits for whoever comes), priority, group, weight, tier, ms until its
                       deadline, body without its closing brace
GIVES per request 1, or 0 if nobody serves the action ]]
-- @include now
-- @include wake
-- @include place
-- @include tally
local is_alive, served = nil, {}
local function is_served(action)
  if action == '' then return true end
  if is_alive == nil then is_alive = redis.call('ZCOUNT', instances, string.format('%d', now), '+inf') > 0 end
  if not is_alive then return false end
  if served[action] == nil then
    local offer = redis.call('HGET', offers, action)
    served[action] = offer ~= false and tonumber(string.match(offer, '^%d+') or 0) >= now
  end
  return served[action]
end
local said, bodies, noted, entries, stored = {}, {}, {}, {}, 0
local is_alone = #ARGV == 11
local worker = is_alone and is_served(ARGV[5]) and wake()
if worker and redis.call('EXISTS', ready, limits, parking) > 0 then
  -- @include bound
  if redis.call('EXISTS', ready) == 1 or is_bound(ARGV[11] .. '}') then is_alone = false end
end
for i = 4, #ARGV, 8 do
  local id, group, tier = ARGV[i], ARGV[i + 3], ARGV[i + 5]
  if is_served(ARGV[i + 1]) then
    stored = stored + 1
    local body = ARGV[i + 7] .. ',"x":' .. string.format('%d', now + ARGV[i + 6]) .. '}'
    bodies[stored * 2 - 1], bodies[stored * 2] = id, body
    noted[stored * 2 - 1], noted[stored * 2] = id, inbox
    if tier ~= '' then redis.call('HINCRBY', stats, 'tier:' .. tier, 1) end
    if worker and is_alone then
      redis.call('ZADD', running, string.format('%d', now + lease_ms), id)
      redis.call('HSET', claims, id, '1 ' .. worker .. ' ' .. string.format('%d', now))
      ring(worker, 'j' .. id .. body)
    else
      entries[#entries + 1] = place(ARGV[i + 2], group, ARGV[i + 4])
      entries[#entries + 1] = id
    end
    said[#said + 1] = 1
  else
    said[#said + 1] = 0
  end
end
if stored > 0 then
  redis.call('HSET', jobs, unpack(bodies))
  redis.call('HSET', waiters, unpack(noted))
  tally('enqueued', stored)
end
if #entries > 0 then
  redis.call('ZADD', ready, unpack(entries))
  keep_marks()
  for _ = 1, math.min(stored, 64) do
    worker = worker or wake()
    if not worker then break end
    ring(worker, '')
    worker = nil
  end
end
return said
