-- Fair tags: the place of a job inside its priority level is a virtual time, max(V, last tag of its tenant) + 64 / weight,
-- V being the tag last handed out at that level. One tenant: plain FIFO. Several: weighted fair queueing, without a scan.
local LEVEL = 8796093022208 -- 2^43: priorities 0..1023 above it stay exact in a double
local marks = {}
local function place(priority, tenant, weight)
  local field = priority .. ':' .. tenant
  local last = marks[field]
  if not last then
    local seen = redis.call('HMGET', clock, priority, field)
    last = math.max(tonumber(seen[1] or 0) or 0, tonumber(seen[2] or 0) or 0)
  end
  -- At the end of the number range all tags become equal; order then falls back to the ids, which are ordered by time.
  last = math.min(last + math.max(1, math.floor(64 / tonumber(weight))), LEVEL - 1)
  marks[field] = last
  return string.format('%d', priority * LEVEL + last) -- text: the server would print the number with 17 digits
end
-- A tenant's last tag is useless once its level's clock has passed it. Where tenants come and go and the queue never runs
-- empty, each turn checks a few and removes these, so that there are never many more than tenants in the queue.
local function forget_marks(hash)
  if redis.call('HLEN', hash) < 256 then return end
  local some, stands, past = redis.call('HRANDFIELD', hash, 32, 'WITHVALUES'), {}, {}
  for i = 1, #some, 2 do
    local level = string.match(some[i], '^(%d+):')
    if level and some[i] ~= level .. ':' then
      stands[level] = stands[level] or tonumber(redis.call('HGET', hash, level) or 0) or 0
      if (tonumber(some[i + 1]) or 0) <= stands[level] then past[#past + 1] = some[i] end
    end
  end
  if #past > 0 then redis.call('HDEL', hash, unpack(past)) end
end
local function keep_marks()
  local flat = {}
  for field, last in pairs(marks) do
    flat[#flat + 1] = field
    flat[#flat + 1] = string.format('%.0f', last)
  end
  if #flat > 0 then redis.call('HSET', clock, unpack(flat)) end
end
