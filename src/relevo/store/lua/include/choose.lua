-- What a turn hands out in a queue with limits (see limits.lua): who may start, in which order, and who is parked.
local MOST_PARKED, MOST_BYTES = 250, 1048576 -- in one turn, roughly, and of their bodies: half a millisecond

-- The place at the end of a line, of its level.
local function behind(one, score)
  local floor = math.floor(score / LEVEL) * LEVEL
  if score == floor then return string.format('%.0f', floor) end
  local last = one.ends[floor]
  if not last then
    local above = '(' .. string.format('%.0f', floor + LEVEL)
    last = redis.call('ZRANGE', one.line, above, string.format('%.0f', floor), 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2] or floor
  end
  one.ends[floor] = math.min(last + 1, floor + LEVEL - 1)
  return string.format('%.0f', one.ends[floor])
end

-- It is the turn of the i-th of some jobs that were taken out of `ready`, and so of its group: the first of the line
-- starts, and if that is another one, this one takes its place. Who starts: id and body.
local function whose_turn(one, some, i)
  local id, score = some.ids[i], tonumber(some.scores[i])
  for _ = 1, MOST_LET_GO do
    local head = one.has_line and redis.call('ZRANGE', one.line, 0, 0, 'WITHSCORES') or {}
    local first = head[1]
    if not first or first == id then break end
    local level, its_level = math.floor(score / LEVEL), math.floor(head[2] / LEVEL)
    if level < its_level then break end
    -- what was handed back goes before all others of its level
    if level == its_level and score == level * LEVEL and (tonumber(head[2]) > score or id < first) then break end
    local at, body, stood
    for j = i + 1, #some.ids do
      if some.ids[j] == first then at, body = j, some.texts[j] end
    end
    if not at then
      body, stood = redis.call('HGET', jobs, first), redis.call('ZSCORE', ready, first)
      if stood then redis.call('ZREM', ready, first) end
    end
    redis.call('ZREM', one.line, first)
    local is_there = at or stood or redis.call('ZREM', waiting, first) == 1
    if body and is_there then -- else it was removed by somebody who knew nothing of lines
      redis.call('ZADD', one.line, 'NX', behind(one, score), id)
      if at then some.ids[at], some.texts[at] = id, some.texts[i]
      elseif stood then redis.call('ZADD', ready, stood, id)
      else redis.call('ZADD', waiting, now_text, id) end
      return first, body
    end
  end
  if one.has_line then redis.call('ZREM', one.line, id) end
  return id, some.texts[i]
end

-- One that is too late will not run: it needs neither a place nor a token.
local function is_too_late(body)
  if not string.find(body, '"x":', 1, true) then return false end
  local is_json, read = pcall(cjson.decode, body)
  return is_json and type(read) == 'table' and type(read.x) == 'number' and read.x < now
end

-- Look at the lines whose time has come. Then take up to `want` jobs that may start out of `ready`, and park those before
-- them that may not: ids, bodies, and of each level the largest tag, as level, tag, …
choose = function()
  local ids, bodies, holds, highest, tops = {}, {}, {}, {}, {}
  local orphans, count, bytes, size = 0, 0, 0, math.min(want, MOST_PARKED)
  if look_before and look_before <= now then
    for _, name in ipairs(redis.call('ZRANGE', parking, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, MOST_LOOKS)) do
      local one = limit_of(name)
      if one then one.is_due, touched[name] = true, one else redis.call('ZREM', parking, name) end
    end
  end
  let_on()
  while #ids < want and count < MOST_PARKED and bytes < MOST_BYTES do
    local rows, some, waits, lines = redis.call('ZRANGE', ready, 0, size - 1, 'WITHSCORES'), { ids = {}, scores = {} }, {}, {}
    local n, i, before = #rows / 2, 0, count
    if n == 0 and let_on() == 0 then break end
    if n > 0 then
      for j = 1, n do some.ids[j], some.scores[j] = rows[j * 2 - 1], rows[j * 2] end
      redis.call('ZREMRANGEBYRANK', ready, 0, n - 1)
      some.texts = redis.call('HMGET', jobs, unpack(some.ids))
    end
    while i < n and #ids < want do
      i = i + 1
      local id, body, score = some.ids[i], some.texts[i], tonumber(some.scores[i])
      local name = body and group_of(body)
      local one = name and limit_of(name)
      if one then touched[name] = one end
      if not body then
        orphans = orphans + 1
      elseif one and room(one) < 1 then
        lines[one] = lines[one] or {}
        local entries = lines[one]
        entries[#entries + 1], entries[#entries + 2] = behind(one, score), id
        waits[#waits + 1], waits[#waits + 2] = now_text, id
        one.has_line = true
        count, bytes = count + 1, bytes + #body
      else
        if one then id, body = whose_turn(one, some, i) end
        if one and one.text and not is_too_late(body) then
          one.held, one.begun = one.held + 1, one.begun + 1
          if one.every then one.full_at = one.full_at + one.every end
          holds[#holds + 1], holds[#holds + 2] = id, name
        end
        ids[#ids + 1], bodies[#bodies + 1] = id, body
        local level = math.floor(score / LEVEL)
        highest[level] = math.max(highest[level] or 0, score - level * LEVEL)
      end
    end
    if #waits > 0 then redis.call('ZADD', waiting, unpack(waits)) end
    for one, entries in pairs(lines) do
      redis.call('ZADD', one.line, 'NX', unpack(entries)) -- who was let go and cannot start after all keeps its place
    end
    if i < n then
      local left = {}
      for j = i + 1, n do left[#left + 1], left[#left + 2] = some.scores[j], some.ids[j] end
      redis.call('ZADD', ready, unpack(left))
    end
    -- Where many are parked, more are looked at, so that a flood costs few commands; but not more than may be read.
    size = math.min(MOST_PARKED, math.max(want - #ids, count > before and size * 2 or 1))
    if count > 0 then size = math.min(size, math.ceil(MOST_BYTES * count / (bytes + 1))) end
  end
  if orphans > 0 then tally('orphans', orphans) end
  if #holds > 0 then redis.call('HSET', holding, unpack(holds)) end
  for level, tag in pairs(highest) do
    if tag > 0 then tops[#tops + 1], tops[#tops + 2] = level, string.format('%.0f', tag) end
  end
  let_on()
  keep_limits()
  keep_marks()
  return ids, bodies, tops
end
