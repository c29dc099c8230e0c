--[[ Set or remove the limit of the queue, of a task or of a tenant (how many jobs may run at once, how fast they may start), or
pause or resume a task or a tenant. Takes effect with the next turn of any worker; running jobs continue.
KEYS  limits     hash  name -> its limit, see limits/lua/include/limit_text.lua
      buckets    hash  name -> when its bucket is full, in microseconds
      parking    zset  names whose lines have jobs, by when to look again
      parked     -     prefix of these lines
      lines      hash  virtual times of the ranks in them
      pauses     hash  what is paused -> since when, until when, why and by whom
      breakers   hash  task -> when its last attempts failed
      ready      zset  priority and fair tag
      running    zset  lease deadline
      idle       zset  workers that wait
      bell       -     prefix of the workers' bells
ARGV  name       text  as limits name it: 'q:' the queue, 't:shop.charge', 'g:acme'
      does       word  limit, unlimit, declare (the default of the code), pause or resume (which also closes a breaker)
      terms      text  of a limit: 'concurrency rate burst'
      ends       int   of a pause: when it ends by itself; 0: never
      note       json  of a pause: why, and by whom
GIVES 1 if that changed something ]]
-- @include store/parked_key
-- @include store/now
-- @include store/afford
-- @include engine/wake_worker
-- @include limits/limit_text
-- @include limits/note_pause
local text = redis.call('HGET', limits, name)
local concurrency, rate, burst, paused_for, open = terms_of(text, name)
-- What counts as a change for users: not when a pause ends or a probe may start.
local function gist() return concurrency .. rate .. burst .. (paused_for == '0' and '0' or '1') .. (open == '' and '' or 'o') end
local before = gist()
-- Of a task: the default of its code, and ' o' if an operator set another limit.
local own, by_operator = string.match(redis.call('HGET', limits, 'd:' .. name) or '', '^(%S+ %S+ %S+)( ?o?)$')
local function take(new) concurrency, rate, burst = string.match(new, '^(%S+) (%S+) (%S+)$') end
if does == 'limit' then
  take(terms)
  if own then redis.call('HSET', limits, 'd:' .. name, own .. ' o') end
elseif does == 'unlimit' then
  take(own or '- - -')
  if own then redis.call('HSET', limits, 'd:' .. name, own) end
elseif does == 'declare' then
  if not own then by_operator = concurrency .. rate == '--' and '' or ' o' end
  if terms == '- - -' then redis.call('HDEL', limits, 'd:' .. name)
  else redis.call('HSET', limits, 'd:' .. name, terms .. by_operator) end
  if by_operator == '' then take(terms) end
elseif does == 'pause' then
  paused_for = ends == '0' and '1' or ends
  note_pause(name, ends, note)
else
  paused_for, open = '0', ''
  redis.call('HDEL', pauses, 'b:' .. string.sub(name, 3))
  redis.call('HDEL', breakers, name)
end
if keep_terms(name, concurrency, rate, burst, paused_for, open) == text then return 0 end
local full_at = tonumber(redis.call('HGET', buckets, name))
if full_at then
  -- The full time of a slow bucket must not delay a faster one.
  local latest = rate ~= '-' and now * 1000 + burst * every_of(rate) or 0
  if latest == 0 then redis.call('HDEL', buckets, name)
  elseif latest < full_at then redis.call('HSET', buckets, name, string.format('%.0f', latest)) end
end
local has_line = redis.call('EXISTS', parked_key(name)) == 1
if has_line then redis.call('ZADD', parking, now, name)
elseif tonumber(paused_for) > 1 or open ~= '' then -- so that a turn removes it in time
  redis.call('ZADD', parking, tonumber(paused_for) > 1 and paused_for or string.match(open, '%d+'), name)
elseif redis.call('ZREM', parking, name) == 1 and redis.call('EXISTS', parking) == 0 then redis.call('DEL', lines) end
if has_line or name == 'q:' and redis.call('EXISTS', ready) == 1 then
  local worker = wake()
  if worker then ring(worker, '') end
end
return gist() == before and 0 or 1
