-- Tasks of jobs that wait for a worker that takes them while none is alive: task, how many jobs, ... For plain functions, and
-- for names that no line can hold, the name comes from the first job of the line.
-- @include engine/takers
-- @include engine/reroute_line
local MOST_UNKNOWN = 50 -- targets that are looked at
local function unknown_tasks()
  local found, rows = {}, redis.call('HSCAN', sought, 0, 'COUNT', MOST_UNKNOWN)[2]
  for i = 1, math.min(#rows, MOST_UNKNOWN * 2), 2 do
    local name, count = rows[i], 0
    for refusals in string.gmatch(rows[i + 1], '%S+') do
      if #takers_of(rows[i], refusals) == 0 then
        local line = reroute_line(rows[i], refusals)
        count = count + redis.call('ZCARD', line)
        if string.find(name, '^[*#]') then
          local first = redis.call('ZRANGE', line, 0, 0)[1]
          local body = first and redis.call('HGET', jobs, first)
          name = body and string.sub(task_of(body) or '', 3) or name
        end
      end
    end
    if count > 0 then found[#found + 1], found[#found + 2] = name, count end
  end
  return found
end
