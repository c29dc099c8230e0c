--[[ Take what is due in this queue's outbox: messages to other queues, and ticks of schedules. The caller has them for
`lease_ms`; what it has not reported as finished by then is given to another caller.
KEYS  errands letters schedules ticks
ARGV  lease_ms   int   how long they are the caller's
      most       int   how many
      timed      flag  1: schedules, too (entries `@name`)
                       then the ids of outbox messages that are finished
GIVES now, ids, texts (of a schedule: its next tick, then its record), when the next one is due (0: never) ]]
-- @include store/now
redis.call('ZREM', errands, '') -- as in store/lua/include/afford.lua: outbox messages must be delivered on a full server, too
for i = 4, #ARGV do
  redis.call('ZREM', errands, ARGV[i])
  redis.call('HDEL', letters, ARGV[i])
end
local ids, texts, size = {}, {}, 0
-- a caller that takes no schedules must see the messages behind them
local others = timed == '1' and 0 or math.min(redis.call('HLEN', schedules), 1000)
local due = redis.call('ZRANGE', errands, '-inf', now, 'BYSCORE', 'LIMIT', 0, most + others)
for _, id in ipairs(due) do
  local is_tick = string.sub(id, 1, 1) == '@'
  if not is_tick or timed == '1' then
    local text
    if is_tick then
      local name = string.sub(id, 2)
      local record = redis.call('HGET', schedules, name)
      text = record and (redis.call('HGET', ticks, 'due:' .. name) or '0') .. '\n' .. record
    else text = redis.call('HGET', letters, id)
    end
    if text then
      ids[#ids + 1], texts[#texts + 1], size = id, text, size + #text
      redis.call('ZADD', errands, now + lease_ms, id)
    else
      redis.call('ZREM', errands, id)
    end
  end
  if size > 524288 then break end -- the others with the next call
end
return { now, ids, texts, tonumber(redis.call('ZRANGE', errands, 0, 0, 'WITHSCORES')[2]) or 0 }
