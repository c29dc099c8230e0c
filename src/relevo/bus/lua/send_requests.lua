--[[ Store plain requests of one process on a service's queue in one call. Requests with a name, a conversation or large data
go through bus/send_message.lua. A single one is handed to an idle worker if nothing is queued before it.
KEYS  jobs ready running claims clock waiters stats idle bell limits parking
      instances  zset  workers that serve the queue, until when they count as alive
      offers     hash  action -> until when a worker serves it
      ended      -     prefix of records of finished jobs
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      lease_ms   int   lease of a job handed over directly
      keep_ms    int   how long the counters live without traffic
      inbox      name  channel of the process that asks
                       then per request: id, action ('': it waits for a worker), priority, tenant, weight, tier, ms until its
                       deadline (0: the body says it), body without its closing brace
GIVES per request 1; 0 if no worker serves the action; 2 if an earlier try was carried out and nothing is left of it ]]
-- @include store/ended_key
-- @include engine/accept_call
-- @include engine/keep_answer
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/tally
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
if was_done then
  local left = {}
  for i = 6, #ARGV, 8 do
    local was_refused = said_then and string.find(said_then, ARGV[i], 1, true)
    local lives = redis.call('HEXISTS', jobs, ARGV[i]) == 1 or redis.call('EXISTS', ended_key(ARGV[i])) == 1
    left[#left + 1] = was_refused and 0 or lives and 1 or 2
  end
  return left
end
local codes, bodies, noted, entries, stored = {}, {}, {}, {}, 0
local is_alone = #ARGV == 13
local worker = is_alone and is_served(ARGV[7]) and wake()
if worker and redis.call('EXISTS', ready, limits, parking) > 0 then
  -- @include limits/is_bound
  if redis.call('EXISTS', ready) == 1 or is_bound(ARGV[13] .. '}') then is_alone = false end
end
for i = 6, #ARGV, 8 do
  local id, tenant, tier = ARGV[i], ARGV[i + 3], ARGV[i + 5]
  if is_served(ARGV[i + 1]) then
    stored = stored + 1
    local deadline = ARGV[i + 6] ~= '0' and ',"x":' .. string.format('%d', now + ARGV[i + 6]) or ''
    local body = ARGV[i + 7] .. deadline .. '}'
    bodies[stored * 2 - 1], bodies[stored * 2] = id, body
    noted[stored * 2 - 1], noted[stored * 2] = id, inbox
    if tier ~= '' then redis.call('HINCRBY', stats, 'tier:' .. tier, 1) end
    if worker and is_alone then
      redis.call('ZADD', running, string.format('%d', now + lease_ms), id)
      redis.call('HSET', claims, id, '1 ' .. worker .. ' ' .. string.format('%d', now))
      ring(worker, 'j' .. id .. body)
    else
      entries[#entries + 1] = place(ARGV[i + 2], tenant, ARGV[i + 4])
      entries[#entries + 1] = id
    end
    codes[#codes + 1] = 1
  else
    codes[#codes + 1] = 0
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
if stored < #codes then
  local refused = {}
  for i, code in ipairs(codes) do
    if code == 0 then refused[#refused + 1] = ARGV[8 * i - 2] end
  end
  remember(table.concat(refused, ' '))
end
return codes
