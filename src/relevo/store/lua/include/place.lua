-- Fair tags: the place of a job inside its priority level is a virtual time, max(V, last tag of its group) + 64 / weight,
-- V being the tag last handed out at that level. One group: plain FIFO. Several: weighted fair queueing, without a scan.
local LEVEL = 8796093022208 -- 2^43: priorities 0..1023 above it stay exact in a double
local marks = {}
local function place(priority, group, weight)
  local field = priority .. ':' .. group
  local last = marks[field]
  if not last then
    local seen = redis.call('HMGET', clock, priority, field)
    last = math.max(tonumber(seen[1] or 0), tonumber(seen[2] or 0))
  end
  -- At the end of the number range all tags become equal; order then falls back to the ids, which are ordered by time.
  last = math.min(last + math.max(1, math.floor(64 / tonumber(weight))), LEVEL - 1)
  marks[field] = last
  return priority * LEVEL + last
end
local function keep_marks()
  local flat = {}
  for field, last in pairs(marks) do
    flat[#flat + 1] = field
    flat[#flat + 1] = string.format('%.0f', last)
  end
  if #flat > 0 then redis.call('HSET', clock, unpack(flat)) end
end
