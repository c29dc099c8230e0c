-- Which live workers take jobs of a target that others refused. A worker is alive while it refreshes `instances` or waits in
-- `idle`. After an outage or a step of the clock all of them seem silent, and count as alive for a while.
-- @include engine/offers
local live, believes_silent
local function live_workers() -- name, build, ...
  if live then return live end
  live = {}
  local rows, names, silent, of = redis.call('ZRANGE', instances, 0, 999, 'REV', 'WITHSCORES'), {}, {}, {}
  for i = 1, #rows, 2 do
    if tonumber(rows[i + 1]) >= now then names[#names + 1] = rows[i] else silent[#silent + 1] = rows[i] end
  end
  for i, till in ipairs(#silent > 0 and redis.call('ZMSCORE', idle, unpack(silent)) or silent) do
    if believes_silent or till and tonumber(till) >= now then names[#names + 1] = silent[i] end
  end
  for i, name in ipairs(names) do of[i] = '#' .. name end
  for i, build in ipairs(#of > 0 and redis.call('HMGET', offers, unpack(of)) or of) do
    if build then live[#live + 1], live[#live + 2] = names[i], build end
  end
  return live
end
local function takers_of(target, refusals)
  local found, workers, fits = {}, live_workers(), {}
  for i = 1, #workers, 2 do
    local build = workers[i + 1]
    if fits[build] == nil then fits[build] = takes(build, target, refusals) or false end
    if fits[build] then found[#found + 1] = workers[i] end
  end
  return found
end
