-- Limits of groups, for queues that have some; all others pay for one question.
--
-- A job that may not start because of its group leaves `ready` and stands in the group's line, parked:<group>, in the
-- order (level, since when): those that came with a place at the head of their level have 0, the others count up. While
-- it may not go it is among the `waiting`. The first of the line are let go when there is room: they go back to `ready`,
-- placed like new ones so that others get their share, and stay in the line until they start, so that no later job of
-- the group overtakes them. What holds is: of each line, as many as there is room for are let go, the first ones.
--
-- `parking` says when each line must be looked at although nothing happens: when a token comes, or just in case.
local LOOK_MS = 60000
local MOST_LOOKS = 20 -- lines whose time has come, in one turn
local MOST_LET_GO = 100 -- of one line, in one look
local MOST_PARKED = 250 -- in one turn, roughly: half a millisecond
local is_limited = redis.call('EXISTS', limits, holding, parking) > 0
local give_up_places, let_on, keep_limits, choose, look_before
if is_limited then
  -- @include group
  -- @include terms
  local known, touched, now_us = {}, {}, now * 1000
  look_before = look_first()

  -- What is known of a group that has a limit, or a line that it had one for; else false.
  local function limit_of(name)
    local one = known[name]
    if one ~= nil then return one end
    one = { name = name, line = parked .. ':' .. name, ends = {}, begun = 0 }
    one.has_line = redis.call('EXISTS', one.line) == 1
    one.had_line = one.has_line
    one.text = redis.call('HGET', limits, name)
    if one.text then
      local concurrency, rate, burst, is_paused = terms_of(one.text)
      one.concurrency, one.every, one.burst, one.is_paused = tonumber(concurrency), every_of(rate), tonumber(burst), is_paused == '1'
      one.held = tonumber(redis.call('HGET', holding, '#' .. name) or 0)
      if one.every then one.full_at = math.max(now_us, tonumber(redis.call('HGET', buckets, name) or 0)) end
    elseif not one.has_line then
      one = false
    end
    known[name] = one
    return one
  end

  -- How many more of a group may start now, and whether it is only for tokens that there are not more.
  local function room(one)
    if one.is_paused then return 0, false end
    local n, by_rate = one.concurrency and one.concurrency - one.held or math.huge, false
    if one.every then
      local tokens = math.floor((one.burst * one.every - (one.full_at - now_us)) / one.every)
      if tokens < n then n, by_rate = tokens, true end
    end
    return math.max(n, 0), by_rate
  end

  -- Let the first of a line go, as many as there is room for: how many went. When its time has come (and so at least
  -- once a minute, also of a group that is paused) its head is cleared of what is not there any more.
  local function let_go(one)
    local free, went = math.min(room(one), MOST_LET_GO), 0
    local most = one.is_due and math.max(free, 20) or free
    one.is_due = false
    if most < 1 or not one.has_line then return 0 end
    for _ = 1, 3 do
      local rows = redis.call('ZRANGE', one.line, 0, most - 1, 'WITHSCORES')
      if #rows == 0 then break end
      local ids, going, places, gone, entries = {}, {}, {}, {}, {}
      for i = 1, #rows / 2 do ids[i] = rows[i * 2 - 1] end
      for i, since in ipairs(redis.call('ZMSCORE', waiting, unpack(ids))) do
        if since and i <= free then
          going[#going + 1] = ids[i]
          places[#going] = tonumber(rows[i * 2])
        elseif not since and not redis.call('ZSCORE', ready, ids[i]) then
          gone[#gone + 1] = ids[i] -- removed by somebody who knew nothing of lines
        end
      end
      if #going > 0 then
        for i, body in ipairs(redis.call('HMGET', jobs, unpack(going))) do
          local _, weight = group_of(body or '')
          local level = math.floor(places[i] / LEVEL)
          -- Tags of their own: those of the group were given to jobs that stand behind in the line.
          entries[i * 2] = going[i]
          entries[i * 2 - 1] = places[i] > level * LEVEL and place(string.format('%d', level), one.name .. '\n', weight or 1)
            or string.format('%.0f', places[i])
        end
        redis.call('ZREM', waiting, unpack(going))
        redis.call('ZADD', ready, unpack(entries))
        went = went + #going
      end
      one.is_untidy = #gone > 0
      if not one.is_untidy then break end
      redis.call('ZREM', one.line, unpack(gone))
      most = MOST_LET_GO
    end
    return went
  end

  -- When a line must be looked at next.
  local function look_at(one)
    if one.is_untidy then return now end
    local n, by_rate = room(one)
    local token_at = math.huge
    if by_rate and n < one.burst and n < MOST_LET_GO then token_at = math.ceil((one.full_at - (one.burst - n - 1) * one.every) / 1000) end
    return math.min(token_at, now + LOOK_MS)
  end

  -- Jobs ran and do so no more.
  give_up_places = function(ids, from, to)
    local of, gone, left = redis.call('HMGET', holding, unpack(ids, from, to)), {}, {}
    for i = 1, to - from + 1 do
      if of[i] then
        gone[#gone + 1] = ids[from + i - 1]
        left[of[i]] = (left[of[i]] or 0) + 1
      end
    end
    if #gone == 0 then return end
    redis.call('HDEL', holding, unpack(gone))
    for name, n in pairs(left) do
      local held = redis.call('HINCRBY', holding, '#' .. name, -n)
      if held < 1 then redis.call('HDEL', holding, '#' .. name) end
      local one = limit_of(name)
      if one then
        one.held = math.max(held, 0)
        if one.has_line then touched[name] = one end
      end
    end
  end

  -- Where places were given up others go on: how many.
  let_on = function()
    local went = 0
    for _, one in pairs(touched) do went = went + let_go(one) end
    return went
  end

  keep_limits = function()
    local longest = 0
    for name, one in pairs(touched) do
      if one.begun > 0 then
        redis.call('HINCRBY', holding, '#' .. name, one.begun)
        if one.every then
          redis.call('HSET', buckets, name, string.format('%.0f', one.full_at))
          longest = math.max(longest, one.full_at)
        end
      end
      if one.had_line or one.has_line then
        if redis.call('EXISTS', one.line) == 1 then redis.call('ZADD', parking, string.format('%.0f', look_at(one)), name)
        else redis.call('ZREM', parking, name) end
      end
    end
    if longest > 0 then outlive(buckets, math.ceil(longest / 1000) - now + 1) end
  end

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
      local at, body, place
      for j = i + 1, #some.ids do
        if some.ids[j] == first then at, body = j, some.texts[j] end
      end
      if not at then
        body, place = redis.call('HGET', jobs, first), redis.call('ZSCORE', ready, first)
        if place then redis.call('ZREM', ready, first) end
      end
      redis.call('ZREM', one.line, first)
      local is_there = at or place or redis.call('ZREM', waiting, first) == 1
      if body and is_there then -- else it was removed by somebody who knew nothing of lines
        redis.call('ZADD', one.line, 'NX', behind(one, score), id)
        if at then some.ids[at], some.texts[at] = id, some.texts[i]
        elseif place then redis.call('ZADD', ready, place, id)
        else redis.call('ZADD', waiting, now_text, id) end
        return first, body
      end
    end
    if one.has_line then redis.call('ZREM', one.line, id) end
    return id, some.texts[i]
  end

  -- Look at the lines whose time has come. Then take up to `want` jobs that may start out of `ready`, and park those before
  -- them that may not: ids, bodies, and of each level the largest tag, as level, tag, …
  choose = function()
    local ids, bodies, holds, highest, tops = {}, {}, {}, {}, {}
    local orphans, count, size = 0, 0, math.min(want, MOST_PARKED)
    if look_before and look_before <= now then
      for _, name in ipairs(redis.call('ZRANGE', parking, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, MOST_LOOKS)) do
        local one = limit_of(name)
        if one then one.is_due, touched[name] = true, one else redis.call('ZREM', parking, name) end
      end
    end
    let_on()
    while #ids < want and count < MOST_PARKED do
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
          count = count + 1
        else
          if one then id, body = whose_turn(one, some, i) end
          if one and one.text then
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
      -- Where many are parked, more are looked at, so that a flood costs few commands.
      size = math.min(MOST_PARKED, math.max(want - #ids, count > before and size * 2 or 1))
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
end
-- Whether a line must be looked at before the time that idle workers know of.
local function looks_sooner()
  local first = is_limited and look_first()
  return first and (not look_before or first < look_before)
end
