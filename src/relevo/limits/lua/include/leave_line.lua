-- A job that is removed before it starts leaves its line, if it is in one.
-- @include engine/rerouted
local has_lines, has_rerouted -- looked up when the first job is removed
local function leave_line(id)
  if has_lines == nil then
    has_rerouted = redis.call('EXISTS', rerouted) == 1
    has_lines = redis.call('EXISTS', parking) == 1
  end
  if has_rerouted then leave_reroute({ id }) end
  if not has_lines then return end
  local body = redis.call('HGET', jobs, id) or ''
  for _, name in ipairs({ tenant_of(body) or '', task_of(body) or '' }) do
    local line = parked_key(name)
    if name ~= '' and redis.call('ZREM', line, id) == 1 then
      -- It may have been released already: then the next one takes its place at the next look.
      if redis.call('EXISTS', line) == 1 then redis.call('ZADD', parking, now, name)
      else
        -- Time to remove a pause that ends by itself, or a breaker that no job probes.
        local text = redis.call('HGET', limits, name) or ''
        local ends = string.match(text, '^%S+ %S+ %S+ (%d%d+)') or string.match(text, '^%S+ %S+ %S+ %d (%d+)/')
        if ends then redis.call('ZADD', parking, ends, name) else redis.call('ZREM', parking, name) end
        if redis.call('EXISTS', parking) == 0 then redis.call('UNLINK', lines) end
      end
      return
    end
  end
end
