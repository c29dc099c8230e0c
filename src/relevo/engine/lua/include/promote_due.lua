-- Moves jobs that are due, at most `most`, from `scheduled` to `ready`: `due` has their ids and scores. `has_rerouted`: some of
-- them may stand in lines for workers of other builds.
local due = redis.call('ZRANGE', scheduled, '-inf', now * 1024 + 1023, 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
local ids, entries, of, levels = {}, {}, {}, {}
for i = 1, #due / 2 do ids[i] = due[i * 2 - 1] end
redis.call('ZREMRANGEBYRANK', scheduled, 0, #ids - 1)
if has_rerouted then leave_reroute(ids) end
if redis.call('EXISTS', groups) == 1 then
  of = redis.call('HMGET', groups, unpack(ids))
  redis.call('HDEL', groups, unpack(ids))
end
for i, id in ipairs(ids) do
  local number = due[i * 2] % 1024
  if number ~= number then number = 0 end -- an infinite score, written by another program
  local priority = levels[number]
  if not priority then
    priority = string.format('%d', number)
    levels[number] = priority
  end
  local weight, tenant = 1, ''
  if of[i] then
    local share, name = string.match(of[i], '^(%S+) (.*)$')
    weight, tenant = tonumber(share) or 1, name or ''
  end
  entries[i * 2 - 1], entries[i * 2] = place(priority, tenant, weight), id
end
redis.call('ZADD', ready, unpack(entries))
