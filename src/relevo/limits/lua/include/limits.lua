-- Limits of the queue, its tasks and its tenants, for queues that have some; all others pay for one EXISTS.
--
-- The limit of the whole queue (`q:`) only bounds how many jobs a turn hands out: all wait where they are.
--
-- A job that may not start because of its tenant (`g:`) or its task (`t:`) leaves `ready` and enters the line of the first of
-- them that has no room, parked:<name>. While it may not start it is in `waiting`. The first jobs of a line are released when
-- there is room: they go back to `ready`, placed like new ones so that other tenants get their share, and stay in the line
-- until they start, so that no later job overtakes them. If the other limit of the two has no room by then, they move to its
-- line and keep their rank. Invariant: of each line, the first n jobs are released, n being the room there is.
--
-- The rank is a fair tag as in engine/include/fair_tags.lua, of a virtual time that all lines share and that lasts as long as any line exists
-- (`lines`): in the line of a tenant, first in, first out; in that of a task, tenants get their shares. Jobs placed at the
-- head of their level have rank 0.
--
-- `parking` has when each line must be looked at although no call touches it: when a token comes, when a pause ends, or to be
-- safe; and when a pause or a breaker with an empty line can be removed.
local LOOK_MS = 60000
local MOST_LOOKS = 20 -- due lines, in one turn
local MOST_LET_GO = 100 -- of one line, in one look
local MOST_MOVES = 250 -- from line to line, in one turn, roughly
-- Commands for releasing jobs, and again for handing them out, roughly: a millisecond or so each. Where every job has another
-- tenant, each job and each line costs some; the rest is left to the next turn, which is due at once.
local MOST_ASKED = 1000
local special = redis.call('EXISTS', limits, holding, parking, rerouted)
local has_rerouted = special > 0 and redis.call('EXISTS', rerouted) == 1
local is_limited = special > (has_rerouted and 1 or 0)
local give_up_places, let_on, keep_limits, choose, look_before, is_full
if is_limited then
  -- @include engine/tenant
  -- @include limits/limit_text
  local known, touched, now_us = {}, {}, now * 1000
  local ranks = {} -- as `marks` in engine/include/fair_tags.lua
  local moves = 0 -- from one line to another, in this turn
  local asked, till = 0, MOST_ASKED
  local function ask(...)
    asked = asked + 1
    return redis.call(...)
  end
  look_before = look_first()

  -- What the server keeps of many names, fetched together; names not fetched here are looked up one by one.
  local seen = {}
  local function meet(names)
    if #names == 0 then return end
    local counts = {}
    for i, name in ipairs(names) do counts[i] = '#' .. name end
    local texts, helds = ask('HMGET', limits, unpack(names)), ask('HMGET', holding, unpack(counts))
    local fulls = ask('HMGET', buckets, unpack(names))
    for i, name in ipairs(names) do seen[name] = { texts[i], helds[i], fulls[i] } end
  end

  -- What is known of a tenant, a task or the queue with a limit, or with a line left from one; else false.
  local function limit_of(name)
    local one = known[name]
    if one ~= nil then return one end
    one = { name = name, line = parked_key(name), begun = 0, is_pending = true }
    one.has_line = ask('EXISTS', one.line) == 1
    one.had_line = one.has_line
    local met = seen[name]
    if met then one.text = met[1] else one.text = ask('HGET', limits, name) end
    if one.text then
      local concurrency, rate, burst, paused_for, open, is_forged = terms_of(one.text, name)
      if is_forged then one.text = false
      elseif paused_for == '0' and string.find(one.text, '^%S+ %S+ %S+ [^0]') then
        one.text = keep_terms(name, concurrency, rate, burst, '0', open)
      end
      one.concurrency, one.every, one.burst, one.is_paused = tonumber(concurrency), every_of(rate), tonumber(burst), paused_for ~= '0'
      one.resumes_at = tonumber(paused_for) > 1 and tonumber(paused_for)
      local probe_at, longest = string.match(open, '^ (%d+)/%d+/?(%d*)')
      one.probe_at = tonumber(probe_at)
      one.closes_at = probe_at and probe_at + (tonumber(longest) or 0)
      one.terms = { concurrency, rate, burst, paused_for }
      one.held = math.max(0, tonumber((met and met[2] or not met and ask('HGET', holding, '#' .. name)) or 0) or 0)
      if one.every then
        local full_at, latest = tonumber((met and met[3] or not met and ask('HGET', buckets, name)) or 0) or 0, now_us + one.burst * one.every
        -- No bucket is emptier than empty: a later time was written before the server's clock stepped back.
        one.is_turned_back = full_at > latest
        one.full_at = math.min(math.max(now_us, full_at), latest)
      end
    end
    if not one.text and not one.has_line then one = false end
    known[name] = one
    return one
  end

  -- How many more may start now, and whether tokens are the only reason that there are not more.
  local is_choosing = false -- by then, ended jobs have given up their places
  local function room(one)
    if one.is_paused or one.probe_at and one.probe_at > now then return 0, false end
    if is_choosing and one.concurrency and one.held >= one.concurrency and not one.is_checked then
      -- There are never more places taken than jobs that run: a larger count was written by another program.
      one.is_checked, one.held = true, math.min(one.held, ask('ZCARD', running) + one.begun)
    end
    local n, by_rate = one.concurrency and one.concurrency - one.held or math.huge, false
    if one.probe_at then n = math.min(n, 1 - one.held) end -- one probe at a time
    if one.every then
      local tokens = math.floor((one.burst * one.every - (one.full_at - now_us)) / one.every)
      if tokens < n then n, by_rate = tokens, true end
    end
    return math.max(n, 0), by_rate
  end
  is_full = function()
    local all = known['q:']
    return all and all.text and room(all) < 1
  end

  local is_only_queue -- only the queue itself has a limit: tenant and task are not read

  -- The limits of a job: its tenant's, its task's. And its tenant and weight.
  local function limits_on(body)
    local ones = {}
    if is_only_queue then return ones end
    local tenant, weight = tenant_of(body)
    local one = tenant and limit_of(tenant)
    if one then ones[1], touched[tenant] = one, one end
    local task = task_of(body)
    one = task and limit_of(task)
    if one then ones[#ones + 1], touched[task] = one, one end
    return ones, tenant or '', weight or 1
  end
  -- The limit that a job must wait for; a paused one first, since that may take long.
  local function lacking(ones)
    local first
    for _, one in ipairs(ones) do
      if room(one) < 1 then
        if one.is_paused then return one end
        first = first or one
      end
    end
    return first
  end

  -- Lines are read from their head, some entries at once; entries that leave from there are removed together. Call
  -- `settle_line` before changing a line in another way.
  local function settle_line(one)
    if one.left and #one.left > 0 then ask('ZREM', one.line, unpack(one.left)) end
    one.left, one.head = nil, nil
  end
  local function head_of(one)
    if not one.has_line then return nil end
    if not one.head or one.at > #one.head then
      settle_line(one)
      one.head, one.left, one.at = ask('ZRANGE', one.line, 0, 99, 'WITHSCORES'), {}, 1
      one.has_line, one.had_line = #one.head > 0, true
    end
    return one.head[one.at], tonumber(one.head[one.at + 1])
  end
  local function leaves(one, id)
    if head_of(one) == id then one.left[#one.left + 1], one.at = id, one.at + 2
    else
      settle_line(one)
      ask('ZREM', one.line, id)
    end
  end
  local function stand(one, rank, id)
    settle_line(one)
    ask('ZADD', one.line, rank, id)
    one.has_line = true
  end

  -- Release the first jobs of a line, as many as there is room for; returns how many. Those that another limit holds back move
  -- to the line of that limit. When the line is due (at least once a minute, also while paused), its head is cleared of jobs
  -- that no longer exist.
  local function let_go(one)
    local free, went = math.min(room(one), MOST_LET_GO), 0
    local most = one.is_due and math.max(free, 20) or free
    -- Nothing has happened to it since the last time: its first jobs are released already.
    if most < 1 or not one.has_line or not (one.is_pending or one.is_due) then return 0 end
    one.is_due, one.is_pending = false, false
    settle_line(one)
    for _ = 1, 3 do
      if moves > MOST_MOVES or asked > till then -- the next turn goes on
        one.is_untidy, one.is_pending = true, true
        break
      end
      local rows = ask('ZRANGE', one.line, 0, most - 1, 'WITHSCORES')
      if #rows == 0 then break end
      local ids, first, places, left, going, entries, moving, went_before, is_cut = {}, {}, {}, {}, {}, {}, {}, {}, false
      for i = 1, #rows / 2 do ids[i] = rows[i * 2 - 1] end
      for i, since in ipairs(ask('ZMSCORE', waiting, unpack(ids))) do
        if since and i <= free then first[#first + 1], places[#places + 1] = ids[i], rows[i * 2]
        elseif not since then went_before[#went_before + 1] = ids[i] end
      end
      for i, stood in ipairs(#went_before > 0 and ask('ZMSCORE', ready, unpack(went_before)) or went_before) do
        if not stood then
          left[#left + 1] = went_before[i] -- removed without leaving its line
          most = MOST_LET_GO
        end
      end
      for i, body in ipairs(#first > 0 and ask('HMGET', jobs, unpack(first)) or first) do
        is_cut = asked > till
        if is_cut then break end
        local ones, _, weight = limits_on(body or '')
        local lack = lacking(ones)
        if lack then
          moving[lack] = moving[lack] or {}
          local others = moving[lack]
          others[#others + 1], others[#others + 2] = places[i], first[i]
          left[#left + 1] = first[i]
          moves = moves + 1
        else
          local score = tonumber(places[i])
          local level = math.floor(score / LEVEL)
          going[#going + 1] = first[i]
          -- Tags of the line's own: the tenant's last tags belong to jobs further back in the line.
          entries[#entries + 1] = score > level * LEVEL and place(string.format('%d', level), one.name .. '\n', weight or 1) or places[i]
          entries[#entries + 1] = first[i]
        end
      end
      if #going > 0 then
        ask('ZREM', waiting, unpack(going))
        ask('ZADD', ready, unpack(entries))
        went = went + #going
      end
      for lack, others in pairs(moving) do
        settle_line(lack)
        ask('ZADD', lack.line, unpack(others))
        lack.has_line = true
      end
      if #left > 0 then ask('ZREM', one.line, unpack(left)) end
      one.is_untidy, one.is_pending = is_cut or #left > 0, is_cut
      if is_cut or #left == 0 then break end
    end
    return went
  end

  -- When a line, or the queue, must be looked at next; nil: never.
  local function look_at(one, has_line)
    local n, by_rate = room(one)
    local token_at = math.huge
    if by_rate and n < one.burst and n < MOST_LET_GO then token_at = math.ceil((one.full_at - (one.burst - n - 1) * one.every) / 1000) end
    if one.name == 'q:' then return n < 1 and token_at < math.huge and ask('EXISTS', ready) == 1 and token_at or nil end
    if not has_line then -- to forget the pause, or the breaker
      local closes_at = one.closes_at
      if closes_at and closes_at <= now then closes_at = now + LOOK_MS end -- its probe still runs
      local first = math.min(one.resumes_at or math.huge, closes_at or math.huge)
      return first < math.huge and first or nil
    end
    -- It was touched while other lines were released, and may be due itself: do not postpone that.
    if one.is_untidy or one.is_pending and n > 0 then return now end
    local probe_at = one.probe_at and one.probe_at > now and one.probe_at
    return math.min(token_at, one.resumes_at or math.huge, probe_at or math.huge, now + LOOK_MS)
  end

  -- The probe succeeded, so the dependency is back; or no job needed it for so long that it is as likely back as not.
  local function close_breaker(one)
    one.probe_at, one.closes_at = nil, nil
    one.is_looked_at, touched[one.name] = true, one -- `parking` must be updated
    one.text = keep_terms(one.name, one.terms[1], one.terms[2], one.terms[3], one.terms[4], '')
    ask('HDEL', pauses, 'b:' .. string.sub(one.name, 3))
  end

  -- These jobs stopped running; `went_well`: they succeeded.
  give_up_places = function(ids, from, to, went_well)
    local of, gone, left = ask('HMGET', holding, unpack(ids, from, to)), {}, {}
    for i = 1, to - from + 1 do
      if of[i] then
        gone[#gone + 1] = ids[from + i - 1]
        for name in string.gmatch(of[i], '[^\n]+') do left[name] = (left[name] or 0) + 1 end
      end
    end
    if #gone == 0 then return end
    local names, flat = {}, {}
    for name in pairs(left) do names[#names + 1] = name end
    meet(names)
    for name, n in pairs(left) do
      local one = limit_of(name)
      local was_full = one and one.text and room(one) < 1
      local held = math.max((one and one.held or tonumber(seen[name][2] or 0) or 0) - n, 0)
      if held > 0 then flat[#flat + 1], flat[#flat + 2] = '#' .. name, string.format('%d', held) else gone[#gone + 1] = '#' .. name end
      if one then
        one.held, one.is_pending = held, true
        if went_well and one.probe_at and one.probe_at <= now then close_breaker(one) end
        if name == 'q:' then one.is_freed = was_full end
        if one.has_line or name == 'q:' then touched[name] = one end
      end
    end
    ask('HDEL', holding, unpack(gone))
    if #flat > 0 then ask('HSET', holding, unpack(flat)) end
  end

  -- Release jobs where places were given up; returns how many. Of lines longer than one look, more only when `ready` is empty.
  let_on = function(is_empty)
    local went, names = 0, {}
    for name in pairs(touched) do names[#names + 1] = name end -- more may be touched in the loop
    for _, name in ipairs(names) do
      local one = touched[name]
      if is_empty and one.has_more then one.is_pending, one.has_more = true, false end
      went = went + let_go(one)
      if one.is_freed and room(one) > 0 and ask('EXISTS', ready) == 1 then went = went + 1 end
      one.is_freed = false
    end
    return went
  end

  -- Write what has changed, and when to look at the lines again.
  keep_limits = function()
    local longest, flat, holders, fulls, looks, unlooked = 0, {}, {}, {}, {}, {}
    for name, one in pairs(touched) do
      if one.begun > 0 then
        holders[#holders + 1], holders[#holders + 2] = '#' .. name, string.format('%d', one.held)
      end
      if one.every and (one.begun > 0 or one.is_turned_back) then
        fulls[#fulls + 1], fulls[#fulls + 2] = name, string.format('%.0f', one.full_at)
        longest = math.max(longest, one.full_at)
      end
      settle_line(one)
      local had_line = one.had_line or one.has_line
      if had_line or one.is_looked_at or name == 'q:' then
        local has_line = had_line and ask('EXISTS', one.line) == 1
        if one.closes_at and one.closes_at <= now and one.held == 0 and not has_line then close_breaker(one) end
        local at = look_at(one, has_line)
        if at then looks[#looks + 1], looks[#looks + 2] = string.format('%.0f', at), name else unlooked[#unlooked + 1] = name end
      end
    end
    if #holders > 0 then ask('HSET', holding, unpack(holders)) end
    if #fulls > 0 then ask('HSET', buckets, unpack(fulls)) end
    if #looks > 0 then ask('ZADD', parking, unpack(looks)) end
    if #unlooked > 0 then ask('ZREM', parking, unpack(unlooked)) end
    if longest > 0 then outlive(buckets, math.ceil(longest / 1000) - now + 1) end
    if ask('EXISTS', parking) == 0 then
      ask('DEL', lines) -- no line is left: their virtual time starts anew
      return
    end
    for field, last in pairs(ranks) do
      flat[#flat + 1], flat[#flat + 2] = field, string.format('%.0f', last)
    end
    if #flat > 0 then ask('HSET', lines, unpack(flat)) end
    forget_marks(lines)
  end

  -- @include limits/choose
end
-- Whether a line must be looked at earlier than idle workers expect.
local function looks_sooner()
  local first = is_limited and look_first()
  return first and (not look_before or first < look_before)
end
