-- Put a living job where it belongs: in the line of its level, or among the scheduled until `when` ('' now, '+ms', 'ms').
local function put(id, priority, when, group, weight)
  local due = 0
  if string.sub(when, 1, 1) == '+' then due = now + tonumber(string.sub(when, 2))
  elseif when ~= '' then due = tonumber(when) end
  if due > now then
    redis.call('ZADD', scheduled, string.format('%d', due * 1024 + priority), id)
    if group ~= '' then redis.call('HSET', groups, id, weight .. ' ' .. group) end
  else
    redis.call('ZADD', ready, place(priority, group, weight), id)
  end
end
