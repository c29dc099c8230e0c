-- A job that is removed before it starts leaves the line of its group, if it stands in one.
local has_lines -- asked once, when the first job is removed
local function leave_line(id)
  if has_lines == nil then has_lines = redis.call('EXISTS', parking) == 1 end
  local name = has_lines and group_of(redis.call('HGET', jobs, id) or '')
  if not name or redis.call('ZREM', parked .. ':' .. name, id) == 0 then return end
  if redis.call('EXISTS', parked .. ':' .. name) == 0 then redis.call('ZREM', parking, name)
  -- It may have been let go already: then the next one goes in its place, as soon as somebody looks.
  else redis.call('ZADD', parking, now, name) end
end
