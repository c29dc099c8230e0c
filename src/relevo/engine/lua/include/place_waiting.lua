-- The place of a job that waits for others, from its bag. What another program wrote there is ignored.
local function place_in(text)
  local priority, when, weight, name, tenant = string.match(text or '', '^(%d%d?%d?%d?)\n(.-)\n(.-)\n(.-)\n(.*)$')
  if not priority or not string.find(when, '^%+?%d*$') or when == '+' or not ((tonumber(weight) or 0) > 0) then return '100', '', '1', '', '' end
  return priority, when, weight, name, tenant
end
-- Put a live job in its place: in its level of `ready`, or in `scheduled` until `when` ('' now, '+ms', 'ms').
local function put(id, priority, when, tenant, weight)
  local due = 0
  if string.sub(when, 1, 1) == '+' then due = now + tonumber(string.sub(when, 2))
  elseif when ~= '' then due = tonumber(when) end
  if due > now then
    redis.call('ZADD', scheduled, string.format('%d', due * 1024 + priority), id)
    if tenant ~= '' then redis.call('HSET', groups, id, weight .. ' ' .. tenant) end
  else
    redis.call('ZADD', ready, place(priority, tenant, weight), id)
  end
end
