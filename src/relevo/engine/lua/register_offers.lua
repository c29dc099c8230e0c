--[[ Register a worker of a queue, with the targets that it knows and the actions of its service; or withdraw it.
KEYS  instances  zset  workers of the queue, until when they count as alive
      offers     hash  action -> until when, description; `@worker` -> its record; `#worker` -> its build;
                       `%build` -> the targets of its workers, as lines `target=signature`, `*` for all others
      ready scheduled groups idle bell parked rerouted sought
      contact    string  when workers last reached the server
ARGV  worker     id    the caller
      serve_ms   int   how long it counts as alive; 0: it withdraws
      known_ms   int   how long descriptions outlive the last worker that offers them
      about      json  the worker's record; '': none needed
      build      word  digest of what it offers
      known      text  what it offers
                       then per action: name, description
GIVES how many workers the queue has ]]
-- @include store/parked_key
-- @include store/now
-- @include engine/wake_worker
-- @include engine/rerouted
-- @include engine/takers
-- @include engine/unwanted_jobs
local COME_BACK_MS = 30000 -- longer than any time between two calls of an idle worker
redis.call('ZREM', instances, '') -- as in store/lua/include/afford.lua: presence must be announced on a full server, too
-- A worker that withdraws takes with it the actions that only it offered, so that no caller waits for them.
local function withdraw(who)
  local had, builds = redis.call('HGET', offers, '#' .. who), {}
  redis.call('ZREM', instances, who)
  redis.call('HDEL', offers, '@' .. who, '#' .. who)
  local left = redis.call('ZRANGE', instances, 0, 999)
  for i, one in ipairs(left) do left[i] = '#' .. one end
  for _, build in ipairs(#left > 0 and redis.call('HMGET', offers, unpack(left)) or left) do
    if build then builds[build] = true end
  end
  if not had or builds[had] then return end
  for target in string.gmatch(offer_of(had), '\n([^\n]+)=%x+') do
    local action, is_known = string.match(target, '^[^.]*%.(.+)$'), false
    local offer = action and redis.call('HGET', offers, action)
    for build in pairs(builds) do is_known = is_known or takes(build, target, '') end
    if offer and not is_known then redis.call('HSET', offers, action, '0' .. string.gsub(offer, '^%d+', '')) end
  end
  redis.call('HDEL', offers, '%' .. had)
end
-- After an outage, or a step of the clock, the others are given time to come back.
local last, hold = string.match(redis.call('GET', contact) or '', '^(%d+) (%d+)$')
if last and math.abs(now - last) < COME_BACK_MS and tonumber(hold) <= now then
  for _, silent in ipairs(redis.call('ZRANGE', instances, '-inf', '(' .. now, 'BYSCORE', 'LIMIT', 0, 10)) do
    if tonumber(redis.call('ZSCORE', idle, silent) or 0) < now then withdraw(silent) end
  end
end
if serve_ms == '0' then withdraw(worker)
else
  local until_ms = string.format('%d', now + serve_ms)
  redis.call('ZADD', instances, until_ms, worker)
  redis.call('PEXPIRE', instances, about == '' and known_ms or serve_ms * 10)
  if about ~= '' then redis.call('HSET', offers, '@' .. worker, about) end
  for i = 7, #ARGV, 2 do redis.call('HSET', offers, ARGV[i], until_ms .. ' ' .. ARGV[i + 1]) end
  redis.call('HSET', offers, '#' .. worker, build, '%' .. build, known)
  redis.call('PEXPIRE', offers, known_ms)
end
if redis.call('EXISTS', rerouted) == 1 then
  live = nil
  if free_hopeless() > 0 then
    local other = wake()
    if other then ring(other, '') end
  end
  -- It may be the worker that some jobs wait for.
  if serve_ms ~= '0' and #lines_for(worker) > 0 and redis.call('ZREM', idle, worker) == 1 then ring(worker, '') end
end
return redis.call('ZCARD', instances)
