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

  -- Write down what has changed, and when to look at the lines again.
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

  -- @include choose
end
-- Whether a line must be looked at before the time that idle workers know of.
local function looks_sooner()
  local first = is_limited and look_first()
  return first and (not look_before or first < look_before)
end
