-- What a turn hands out in a queue with limits (see limits/include/limits.lua): which jobs may start, in which order, and which are parked.
local MOST_PARKED, MOST_BYTES = 250, 1048576 -- per turn, roughly, and bytes of their bodies: half a millisecond
local MOST_STIRS = 5 -- how often a turn begins anew because a released job moved to another line
local MOST_HEADS = 300 -- of lines that are looked at in one turn: a few milliseconds
local is_stirred, stirs, heads = false, 0, 0

-- The rank of a job that begins to wait, as text: behind all others of its tenant and level.
local function new_rank(score, tenant, weight)
  local level = math.floor(score / LEVEL)
  if score == level * LEVEL then return string.format('%.0f', score) end
  local field = string.format('%d:%s', level, tenant)
  local last = ranks[field]
  if not last then
    local seen = ask('HMGET', lines, string.format('%d', level), field)
    last = math.max(tonumber(seen[1] or 0) or 0, tonumber(seen[2] or 0) or 0)
  end
  ranks[field] = math.min(last + math.max(1, math.floor(64 / weight)), LEVEL - 1)
  return string.format('%.0f', level * LEVEL + ranks[field])
end
-- A job of this rank starts: the virtual time of its level moves up to it.
local function pass(rank)
  local level = math.floor(rank / LEVEL)
  local field = string.format('%d', level)
  ranks[field] = ranks[field] or tonumber(ask('HGET', lines, field) or 0)
  ranks[field] = math.max(ranks[field], rank - level * LEVEL)
end
-- The rank of a job in one of its lines, and that line; nil: it is in none.
local function rank_of(id, ones)
  for _, one in ipairs(ones) do
    local rank = one.has_line and ask('ZSCORE', one.line, id)
    if rank then return rank, one end
  end
end

-- A released job has moved to another line. The next one of this line takes its place before anything less urgent starts,
-- unless so many may be released that there are others.
local function stir(one)
  if room(one) >= MOST_LET_GO then one.has_more = true else is_stirred, one.is_pending = true, true end
end

-- The i-th of some jobs taken out of `ready` may start. If another job is ahead of it in one of its lines and may start,
-- that one starts, and this one takes its place. Returns what starts: id, body and limits.
local function whose_turn(some, i, ones, tenant, weight)
  local id, body, score = some.ids[i], some.texts[i], tonumber(some.scores[i])
  local rank, stands, is_new -- its place in a line, once known; a new job is behind all of its level
  for _ = 1, MOST_LET_GO do
    local before, its_line, its_rank
    for _, one in ipairs(ones) do
      local first, first_rank = head_of(one)
      if first then heads = heads + 1 end
      if first == id then rank, stands = first_rank, one
      elseif first then
        if not rank then
          rank, stands = rank_of(id, ones)
          is_new = not rank
          local level = math.floor(score / LEVEL)
          rank = tonumber(rank) or score == level * LEVEL and score or (level + 1) * LEVEL - 1
        end
        local is_before = first_rank < rank or first_rank == rank and first < id
        if is_before and (not before or first_rank < its_rank) then before, its_line, its_rank = first, one, first_rank end
      end
    end
    if not before then break end
    if not some.at then -- index of each id
      some.at = {}
      for j = 1, #some.ids do if some.ids[j] then some.at[some.ids[j]] = j end end
    end
    local at, text, stood = some.at[before], nil, nil
    if at and at > i then text = some.texts[at] else at = nil end
    if not at then text, stood = ask('HGET', jobs, before), ask('ZSCORE', ready, before) end
    leaves(its_line, before)
    if text and (at or stood or ask('ZSCORE', waiting, before)) then -- else it was removed without leaving its line
      local its_ones, its_tenant, its_weight = limits_on(text)
      local lack = lacking(its_ones)
      if lack then -- it waits for another limit now and keeps its rank
        stand(lack, string.format('%.0f', its_rank), before)
        moves = moves + 1
        stir(its_line)
        if at then some.ids[at], some.at[before] = false, nil elseif stood then ask('ZREM', ready, before) end
        if at or stood then ask('ZADD', waiting, now_text, before) end
        if moves > MOST_MOVES then break end -- bounds the turn, at the price of this job's place in the order
      else
        if not stands then stand(its_line, is_new and new_rank(score, tenant, weight) or string.format('%.0f', rank), id) end
        if at then some.ids[at], some.texts[at], some.at[id], some.at[before] = id, body, at, nil
        elseif stood then
          ask('ZREM', ready, before)
          ask('ZADD', ready, stood, id)
        else
          ask('ZREM', waiting, before)
          ask('ZADD', waiting, now_text, id)
          -- It was released and waits again although there may be room: mark its lines, or they are not looked at.
          its_line.is_pending = true
          if stands then stands.is_pending = true end
        end
        id, body, ones, tenant, weight = before, text, its_ones, its_tenant, its_weight
        rank, stands, is_new = its_rank, nil, false
      end
    end
  end
  if stands then leaves(stands, id) end
  if rank and not is_new then pass(rank) end
  return id, body, ones
end

-- A job past its deadline will not run: it needs neither a place nor a token.
local function is_too_late(body)
  if not string.find(body, '"x":', 1, true) then return false end
  local is_json, read = pcall(cjson.decode, body)
  return is_json and type(read) == 'table' and type(read.x) == 'number' and read.x < now
end

-- Names that must be looked at now. No line waits longer than LOOK_MS: a later time was written before the server's clock
-- stepped back. (A name without a line may wait for the end of a pause.)
local function lines_due()
  if not look_before or look_before > now and look_before <= now + LOOK_MS then return {} end
  local due = ask('ZRANGE', parking, '-inf', now_text, 'BYSCORE', 'LIMIT', 0, MOST_LOOKS)
  local far = string.format('(%d', now + LOOK_MS)
  for _, name in ipairs(ask('ZRANGE', parking, far, '+inf', 'BYSCORE', 'LIMIT', 0, MOST_LOOKS)) do
    if ask('EXISTS', parked_key(name)) == 1 then due[#due + 1] = name end
  end
  return due
end

-- Look at the lines that are due. Then take up to `want` jobs that may start out of `ready`, and park those before them that
-- may not. Returns ids, bodies, and the largest tag of each level, as level, tag, …
choose = function(budget)
  local ids, bodies, holds, highest, tops = {}, {}, {}, {}, {}
  local most, all = want, limit_of('q:')
  is_choosing = true
  if all and all.text then
    local looks = ask('ZCARD', parking)
    if looks == 1 and ask('ZSCORE', parking, 'q:') then looks = 0 end
    is_only_queue = looks == 0 and ask('HLEN', limits) == 1
    touched['q:'], most = all, math.min(room(all), want)
  end
  local orphans, count, bytes, size = 0, 0, 0, math.min(most, MOST_PARKED)
  for _, name in ipairs(lines_due()) do
    local one = limit_of(name)
    if one then one.is_due, one.is_looked_at, touched[name] = true, true, one else ask('ZREM', parking, name) end
  end
  till = asked + MOST_ASKED
  let_on()
  till = asked + MOST_ASKED -- a budget of its own: jobs start however many were released
  local given, is_cut = 0, false
  while not is_cut and #ids < most and count < MOST_PARKED and bytes < MOST_BYTES and heads < MOST_HEADS and asked < till do
    local rows, some, waits, parks = ask('ZRANGE', ready, 0, size - 1, 'WITHSCORES'), { ids = {}, scores = {} }, {}, {}
    local n, i, before = #rows / 2, 0, count
    if n == 0 and let_on(true) == 0 then break end
    if n > 0 then
      for j = 1, n do some.ids[j], some.scores[j] = rows[j * 2 - 1], rows[j * 2] end
      some.texts = bodies_within(some.ids, budget - given)
      for j = n, #some.texts + 1, -1 do some.ids[j], is_cut = nil, true end
      n = #some.ids
      ask('ZREMRANGEBYRANK', ready, 0, n - 1)
    end
    while i < n and #ids < most and heads < MOST_HEADS and asked < till and not (is_stirred and stirs < MOST_STIRS) do
      i = i + 1
      local id, body, score = some.ids[i], some.texts[i], tonumber(some.scores[i])
      local ones, tenant, weight
      if body then ones, tenant, weight = limits_on(body) end
      local lack = ones and lacking(ones)
      if not id then -- it was ahead of another job and waits for another limit now
      elseif not body then
        orphans = orphans + 1
        redis.call('UNLINK', carried_key(id))
        for _, one in pairs(touched) do one.is_pending = true end -- it may have been in any line
      elseif lack then
        local rank, stands
        if #ones > 1 then rank, stands = rank_of(id, ones) end
        if stands ~= lack then
          if stands then
            leaves(stands, id)
            stir(stands)
          end
          parks[lack] = parks[lack] or {}
          local entries = parks[lack]
          entries[#entries + 1], entries[#entries + 2] = rank or new_rank(score, tenant, weight), id
        end
        waits[#waits + 1], waits[#waits + 2] = now_text, id
        lack.has_line = true
        count, bytes = count + 1, bytes + #body
      else
        if #ones > 0 then id, body, ones = whose_turn(some, i, ones, tenant, weight) end
        if all then ones[#ones + 1] = all end
        local is_late = #ones > 0 and is_too_late(body)
        if #ones > 0 and not is_late then
          local names = {}
          for _, one in ipairs(ones) do
            if one.text then
              one.held, one.begun = one.held + 1, one.begun + 1
              if one.every then one.full_at = one.full_at + one.every end
              names[#names + 1] = one.name
            end
          end
          if #names > 0 then holds[#holds + 1], holds[#holds + 2] = id, table.concat(names, '\n') end
        end
        for _, one in ipairs(ones) do -- it took no place, or more wait than one look releases: others may start
          if is_late then one.is_pending = true elseif one.has_line and room(one) >= MOST_LET_GO then one.has_more = true end
        end
        ids[#ids + 1], bodies[#bodies + 1], given = id, body, given + #body
        local level = math.floor(score / LEVEL)
        highest[level] = math.max(highest[level] or 0, score - level * LEVEL)
      end
    end
    if #waits > 0 then ask('ZADD', waiting, unpack(waits)) end
    for one, entries in pairs(parks) do
      settle_line(one)
      ask('ZADD', one.line, 'NX', unpack(entries)) -- a released job that cannot start after all keeps its place
    end
    local left = {}
    for j = i + 1, n do
      if some.ids[j] then left[#left + 1], left[#left + 2] = some.scores[j], some.ids[j] end
    end
    if #left > 0 then ask('ZADD', ready, unpack(left)) end
    if is_stirred and stirs < MOST_STIRS then
      is_stirred, stirs = false, stirs + 1
      let_on()
    end
    -- Where many are parked, larger parts are read, so that a flood costs few commands; but no more than the limits above.
    size = math.min(MOST_PARKED, math.max(most - #ids, count > before and size * 2 or 1))
    if stirs > 0 then size = math.min(size, 32) end -- it may happen again: take few, since the rest is put back
    if count > 0 then size = math.min(size, math.ceil(MOST_BYTES * count / (bytes + 1))) end
  end
  if orphans > 0 then tally('orphans', orphans) end
  if #holds > 0 then ask('HSET', holding, unpack(holds)) end
  for level, tag in pairs(highest) do
    if tag > 0 then tops[#tops + 1], tops[#tops + 2] = level, string.format('%.0f', tag) end
  end
  let_on(true)
  keep_limits()
  keep_marks()
  return ids, bodies, tops
end
