-- Roughly how many bytes a turn hands out: a worker reads them in one reply, and the server is busy with it. At least one job
-- is handed out, however large; the others go with the next turn. 400 jobs of usual size are a fiftieth of this.
local MOST_BODIES, LARGE = 4194304, 65536
-- The bodies of the first of these jobs that fit, at least one. Those behind a large one are measured before they are read.
local function bodies_within(ids, budget)
  local bodies, size, at, part = {}, 0, 1, 16
  local is_large = #ids > 1 and redis.call('HSTRLEN', jobs, ids[1]) > LARGE
  while at <= #ids do
    local last = is_large and at or math.min(at + part - 1, #ids)
    if is_large and at > 1 and size + redis.call('HSTRLEN', jobs, ids[at]) > budget then break end
    for i, text in ipairs(redis.call('HMGET', jobs, unpack(ids, at, last))) do
      local length = text and #text or 0
      size = size + length
      if size > budget and at + i > 2 then return bodies end
      bodies[at + i - 1], is_large = text, is_large or length > LARGE
    end
    at, part = last + 1, part * 4
  end
  return bodies
end
