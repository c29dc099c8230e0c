-- For the duration of a turn, rerouted jobs that the caller can take are among the ready ones, first of their level, so that
-- priorities and limits apply to them. Those that the turn does not hand out go back to their lines.
local MOST_LENT = 250
local lent = {}
local function lend(most)
  local found, rows = lines_for(worker), {}
  most = math.min(most, MOST_LENT)
  for i = 1, #found, 2 do
    local some = redis.call('ZRANGE', reroute_line(found[i], found[i + 1]), 0, most - 1, 'WITHSCORES')
    for j = 1, #some, 2 do rows[#rows + 1] = { id = some[j], score = some[j + 1], target = found[i], refusals = found[i + 1] } end
  end
  if #rows == 0 then return end
  table.sort(rows, function(a, b)
    local x, y = tonumber(a.score), tonumber(b.score)
    return x < y or x == y and a.id < b.id
  end)
  local ids, entries, of = {}, {}, {}
  for i = 1, math.min(most, #rows) do ids[i] = rows[i].id end
  local due, shares = redis.call('ZMSCORE', scheduled, unpack(ids)), redis.call('HMGET', groups, unpack(ids))
  for i, id in ipairs(ids) do
    local row = rows[i]
    local line = row.target .. '\n' .. row.refusals
    of[line] = of[line] or { row.target, row.refusals, {} }
    of[line][3][#of[line][3] + 1] = id
    if due[i] then -- else it was removed without leaving its line
      row.due, row.share, lent[id] = due[i], shares[i], row
      entries[#entries + 1], entries[#entries + 2] = row.score, id
    end
  end
  for _, line in pairs(of) do quit_reroute(line[1], line[2], line[3]) end
  redis.call('ZREM', scheduled, unpack(ids))
  redis.call('HDEL', groups, unpack(ids))
  if #entries > 0 then redis.call('ZADD', ready, unpack(entries)) end
end
local function take_back_lent(ids) -- whether some were left
  local is_left = false
  for _, id in ipairs(ids) do lent[id] = nil end
  for id, row in pairs(lent) do
    if redis.call('ZREM', ready, id) == 1 then -- else a limit holds it back
      join_reroute(row.target, row.refusals, { row.score, id })
      redis.call('ZADD', scheduled, row.due, id)
      if row.share then redis.call('HSET', groups, id, row.share) end
      is_left = true
    end
  end
  return is_left
end
-- Wake idle workers that can take the jobs, at most one per job.
local function ring_takers(target, refusals, count)
  for _, who in ipairs(takers_of(target, refusals)) do
    if count < 1 then return end
    if redis.call('ZREM', idle, who) == 1 then
      ring(who, '')
      count = count - 1
    end
  end
end
