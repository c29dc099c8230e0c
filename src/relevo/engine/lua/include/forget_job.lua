-- Removes what is kept of a job that has not started, its place in a line, and the name that it holds.
-- @include limits/leave_line
local function forget(id, name)
  leave_line(id) -- first: it asks for the body
  for _, key in ipairs({ jobs, claims, story, groups }) do redis.call('HDEL', key, id) end
  release(name, id)
end
