--[[ A worker's one round trip: settle what it finished, promote what is due, take back what dead workers held, and
hand out up to `want` jobs. Each part is bounded. Only the holder of a job's token can settle it: settlements under an older
token are refused.

KEYS  jobs ready scheduled running waiting claims story groups clock names waiters stats idle bell paused
      limits holding buckets parking parked lines pauses
      carried errands letters ended done dead cancelled expired alike kinds contact notes
      rerouted sought offers instances
ARGV  worker     id    the caller
      lease_ms   int   lease of a job without a renewal
      idle_ms    int   how long the worker counts as waiting
      want       int   how many jobs it has room for
      keep_ms    int   how long the counters live without traffic
      done_max   int   entries kept in the index of done jobs
      dead_max   int   dead letters kept
      first      int   jobs done at the first attempt, token 1, which are most: id
      kept       int   the last so many of them leave a record: ttl, record (ttl below 0: only published; kept for so long if no
                       process received it)
      moved      int   all others: id, token, verb, priority, tenant, weight, ms, text, name, follow id, priority, body
                       verb retry: scheduled after `ms` with the story `text`; back: first of its level, story `text`;
                       done, dead, cancelled, expired: ended with the record `text` for `ms` (below 0: as above);
                       mute: dead, without notices;
                       reroute, offer: for a worker of another build, in a line, with the story `text`; ready for any worker
                       after `ms`. The name is `target\nrefusals`, see engine/include/rerouted.lua. An offered one stays with the caller if
                       no live worker fits
GIVES now, when to ask again (0: never), ids whose settlement was refused, ids, bodies,
      [index, claim, story] of those handed out before, [id, claim, body, story] of those whose lease has ended: the
      claim has a new token, unless the caller itself holds it: then its lease is renewed, since it may not know of the job,
      when the next entry of the outbox is due (0: none), ids that were offered and that no live worker takes ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/parked_key
-- @include store/alike_key
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/end_job
-- @include engine/tally
-- @include engine/next_due
-- @include engine/outbox_due

-- Numbers are passed to commands as text, made once: the server would print each of them with 17 digits.
local now_text, lease_text = string.format('%d', now), string.format('%d', now + lease_ms)
-- @include engine/byte_budget
-- @include limits/limits
-- @include engine/rerouted
-- @include engine/takers
-- @include engine/lend_rerouted
-- @include engine/contact
local hold = note_contact(tonumber(lease_ms))
believes_silent = hold > now
local refused, unwanted = {}, {}
first, kept, moved = tonumber(first), tonumber(kept), tonumber(moved)
local at = 11 + first -- what comes after the ids

if first > 0 then
  local held = redis.call('HMGET', claims, unpack(ARGV, 11, at - 1))
  local ours, seen, counts = first, nil, false
  for i = 1, first do
    local claim = held[i]
    if claim ~= seen then -- one turn's jobs carry one claim: parsed once
      seen = claim
      counts = claim and string.sub(claim, 1, 2) == '1 '
    end
    if not counts then
      refused[#refused + 1] = ARGV[10 + i]
      held[i] = false
      ours = ours - 1
    end
  end
  if ours > 0 then
    local done_ids, from, to = ARGV, 11, at - 1
    if ours < first then
      done_ids, from, to = {}, 1, ours
      for i = 1, first do if held[i] then done_ids[#done_ids + 1] = ARGV[10 + i] end end
    end
    redis.call('ZREM', running, unpack(done_ids, from, to))
    redis.call('HDEL', jobs, unpack(done_ids, from, to))
    redis.call('HDEL', claims, unpack(done_ids, from, to))
    if is_limited then give_up_places(done_ids, from, to, true) end
    redis.call('HINCRBY', stats, 'done', ours)
    if has_waiters() then
      for i = 1, first - kept do if held[i] then tell(ARGV[10 + i], 'done', '{"state":"done"}', 1) end end
    end
    local entries, longest = {}, 0
    for i = first - kept + 1, first do
      if held[i] then
        local id, row = ARGV[10 + i], at + (i - first + kept - 1) * 2
        local ttl, record = tonumber(ARGV[row]), ARGV[row + 1]
        if ttl > 0 then
          redis.call('SET', ended_key(id), record, 'PX', ARGV[row])
          entries[#entries + 1] = now_text
          entries[#entries + 1] = id
          longest = math.max(longest, ttl)
        end
        tell(id, 'done', record, 1, ttl < 0 and -ttl)
      end
    end
    if #entries > 0 then
      redis.call('ZADD', done, unpack(entries))
      redis.call('ZREMRANGEBYRANK', done, 0, -done_max - 1)
      outlive(done, longest)
    end
  end
  at = at + kept * 2
end

local index_of = { done = done, dead = dead, cancelled = cancelled, expired = expired, mute = dead }
local readied, postponed, sent = 0, {}, {}
if moved > 0 then
  local ids, settled = {}, {}
  for i = 1, moved do ids[i] = ARGV[at + (i - 1) * 12] end
  local held, lent = redis.call('HMGET', claims, unpack(ids)), redis.call('ZMSCORE', running, unpack(ids))
  local taken, over = {}, {}
  for i = 1, moved do
    -- A job that was given back keeps its token until it is handed out again: a repeated settlement must not count twice.
    local id, row = ids[i], at + (i - 1) * 12
    if lent[i] and not taken[id] and held[i] and string.match(held[i], '^%d+') == ARGV[row + 1] then
      settled[#settled + 1], taken[id], taken[#taken + 1] = i, true, id
      if index_of[ARGV[row + 2]] then over[#over + 1] = id end
    else
      refused[#refused + 1] = id
    end
  end
  if #taken > 0 then redis.call('ZREM', running, unpack(taken)) end
  if #over > 0 then
    redis.call('HDEL', jobs, unpack(over))
    redis.call('HDEL', claims, unpack(over))
    redis.call('HDEL', story, unpack(over))
  end
  local counted = {}
  if is_limited and #settled > 0 then
    local well, ill = {}, {}
    for _, i in ipairs(settled) do
      local of = ARGV[at + (i - 1) * 12 + 2] == 'done' and well or ill
      of[#of + 1] = ids[i]
    end
    if #ill > 0 then give_up_places(ill, 1, #ill) end
    if #well > 0 then give_up_places(well, 1, #well, true) end
  end
  for _, i in ipairs(settled) do
    local row = at + (i - 1) * 12
    local id, verb, priority = ARGV[row], ARGV[row + 2], ARGV[row + 3]
    local tenant, weight, ms, text = ARGV[row + 4], ARGV[row + 5], tonumber(ARGV[row + 6]), ARGV[row + 7]
    local index = index_of[verb]
    if index then
      release(ARGV[row + 8], id)
      if verb == 'mute' then
        redis.call('HDEL', waiters, id)
        verb = 'dead'
      end
      file(index, verb, id, text, ms, ARGV[row + 1])
      -- what it carried with it: inputs and checkpoints, needed for a revival
      if verb == 'done' then redis.call('UNLINK', carried_key(id))
      else redis.call('PEXPIRE', carried_key(id), ms) end
    elseif verb == 'reroute' or verb == 'offer' then
      local target, refusals = string.match(ARGV[row + 8], '^(.*)\n(.*)$')
      if verb == 'offer' and #takers_of(target, refusals) == 0 then
        redis.call('ZADD', running, lease_text, id)
        unwanted[#unwanted + 1] = id
        verb = nil
      else
        local line = sent[ARGV[row + 8]] or { target, refusals, {} }
        sent[ARGV[row + 8]] = line
        line[3][#line[3] + 1], line[3][#line[3] + 2] = string.format('%.0f', priority * LEVEL), id
        if text ~= '' then redis.call('HSET', story, id, text) end
        redis.call('ZADD', scheduled, string.format('%.0f', (now + ms) * 1024 + priority), id)
        if tenant ~= '' then redis.call('HSET', groups, id, weight .. ' ' .. tenant) end
        verb = 'rerouted'
      end
    else
      if text ~= '' then redis.call('HSET', story, id, text) end
      if verb == 'retry' and ms > 0 then
        redis.call('ZADD', scheduled, (now + ms) * 1024 + priority, id)
        postponed[id] = true
        if tenant ~= '' then redis.call('HSET', groups, id, weight .. ' ' .. tenant) end
      else
        -- tag 0: returned jobs go before later ones, and among themselves by id, that is by age
        redis.call('ZADD', ready, verb == 'back' and priority * LEVEL or place(priority, tenant, weight), id)
        readied = readied + 1
      end
    end
    if verb then counted[verb] = (counted[verb] or 0) + 1 end
    local follow = ARGV[row + 9]
    if follow ~= '' then -- the follow-up is queued in the same step: no crash can lose it
      redis.call('HSET', jobs, follow, ARGV[row + 11])
      redis.call('ZADD', ready, place(ARGV[row + 10], '', 1), follow)
      redis.call('HINCRBY', stats, 'enqueued', 1)
      readied = readied + 1
    end
  end
  for verb, count in pairs(counted) do redis.call('HINCRBY', stats, verb, count) end
  for _, line in pairs(sent) do
    join_reroute(line[1], line[2], line[3])
    ring_takers(line[1], line[2], #line[3] / 2)
  end
  at = at + moved * 12
end

-- A worker without room will not call again when a retry is due that is now the next due job. An idle one must be woken: its
-- timer was set for a later time, or for none.
local function due_for_others()
  return next(postponed) and postponed[redis.call('ZRANGE', scheduled, 0, 0)[1]]
end

want = tonumber(want)
local errand_at = errand_first() -- just posted, or left by a worker that could not deliver it
if first + moved > #refused then redis.call('PEXPIRE', stats, keep_ms)
else
  -- @include store/afford
end
local resumes_at = 0
-- A pause that has expired is removed by the next turn.
local function is_held_up()
  if redis.call('EXISTS', paused) == 0 then return false end
  -- @include limits/queue_pause
  if is_halted() then
    resumes_at = tonumber(redis.call('HGET', paused, ''))
    return true
  end
  -- @include limits/resume_queue
  return false
end
if want <= 0 or is_held_up() then
  if is_limited then
    readied = readied + let_on()
    keep_limits()
  end
  keep_marks()
  if want > 0 then redis.call('HSET', paused, worker, now) -- resuming wakes all workers noted here
  elseif readied > 0 or due_for_others() or looks_sooner() then
    local other = wake()
    if other then ring(other, '') end
  end
  -- Only this caller may know of the released jobs, and it asked for none now: let it ask again at once.
  return { now, is_limited and want == 0 and readied > 0 and now or resumes_at, refused, {}, {}, {}, {}, errand_at or 0, unwanted }
end

-- Both sets are read once, at their first entry: is it due, and if not, when?
local due_at, lease_end = due_first(), lease_first(hold)
if due_at and due_at <= now then
  -- At most half a millisecond: the first jobs of a burst must start, and other clients be served, before all are moved.
  local most = math.max(100, math.min(want, 250))
  -- @include engine/promote_due
  due_at = due_first()
end
keep_marks()

-- @include engine/take_back
local lost, lost_size = {}, 0
local overdue = lease_end and lease_end <= now and redis.call('ZRANGE', running, '-inf', hold > now and ABANDONED or now_text, 'BYSCORE', 'LIMIT', 0, 20)
local silent = 0
for _, id in ipairs(overdue or lost) do
  if lost_size > MOST_BODIES then break end -- the others with the next turn
  local body = redis.call('HGET', jobs, id)
  if body then
    lost_size = lost_size + #body
    local claim = redis.call('HGET', claims, id) or ''
    -- A custom loop (idle_ms 0) may have lost its job without noticing; a worker knows its jobs.
    if tonumber(idle_ms) > 0 and string.match(claim, '^%d+ (%S+)') == worker then redis.call('ZADD', running, lease_text, id)
    else
      claim = take_back(id, lease_text)
      silent = silent + 1
    end
    lost[#lost + 1] = { id, claim, body, redis.call('HGET', story, id) or '' }
  else
    redis.call('ZREM', running, id)
    redis.call('HDEL', claims, id)
    redis.call('UNLINK', carried_key(id))
    if is_limited then give_up_places({ id }, 1, 1) end
    tally('orphans', 1)
  end
end
if silent > 0 then tally('lost', silent) end
if overdue then lease_end = lease_first(hold) end

local ids, bodies, again = {}, {}, {}
if has_rerouted then lend(want) end
local tops = {} -- level, largest tag handed out: the new time of the level's clock
local is_cut = false
if is_limited then ids, bodies, tops = choose(MOST_BODIES - lost_size)
else
  ids = redis.call('ZRANGE', ready, 0, want - 1)
  bodies = bodies_within(ids, MOST_BODIES - lost_size)
  for i = #ids, #bodies + 1, -1 do ids[i], is_cut = nil, true end
  if is_cut then want = #ids end -- it gets no more, and asks again at once
end
local n = #ids
if n == want and not is_limited then
  local top = tonumber(redis.call('ZSCORE', ready, ids[n]))
  while top do
    local level = math.floor(top / LEVEL)
    if top > level * LEVEL then
      tops[#tops + 1] = level
      tops[#tops + 1] = string.format('%.0f', top - level * LEVEL)
    end
    -- all of the levels before the last one's go: the next top is the last entry below that level
    local below = '(' .. string.format('%.0f', level * LEVEL)
    top = tonumber(redis.call('ZRANGE', ready, below, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, 1, 'WITHSCORES')[2])
  end
end
if n > 0 then
  if not is_limited then
    redis.call('ZREMRANGEBYRANK', ready, 0, n - 1)
  end
  local before = redis.call('HMGET', claims, unpack(ids))
  -- Padded to more than 64 bytes, so that the server keeps claims as a hash table: in its compact encoding each lookup is a
  -- scan, and a turn makes hundreds.
  local fresh = '1 ' .. worker .. ' ' .. now_text .. string.rep(' ', 64)
  local leases, stamps, m = {}, {}, 0
  for i = 1, n do
    if bodies[i] then
      m = m + 1
      local id = ids[i]
      local claim = fresh
      if before[i] then
        local token, flag = string.match(before[i], '^(%d+) %S+ %S+(.*)$')
        claim = string.format('%d', (token or 0) + 1) .. ' ' .. worker .. ' ' .. now_text .. (flag or '')
        again[#again + 1] = m - 1
        again[#again + 1] = claim
        again[#again + 1] = redis.call('HGET', story, id) or ''
      end
      if m < i then ids[m], bodies[m] = id, bodies[i] end
      stamps[m * 2 - 1], stamps[m * 2] = id, claim
    else redis.call('UNLINK', carried_key(ids[i])) -- the purge finds its other keys, but not this one
    end
  end
  if m < n then -- an entry whose body is gone is dropped and counted; it must never stop the others
    tally('orphans', n - m)
    for i = n, m + 1, -1 do ids[i], bodies[i] = nil, nil end
  end
  if m > 0 then
    -- the last first: an entry that goes before all others finds its place at once
    for i = 1, m do leases[i * 2 - 1], leases[i * 2] = lease_text, ids[m + 1 - i] end
    redis.call('ZADD', running, unpack(leases))
    redis.call('HSET', claims, unpack(stamps))
    lease_end = lease_end or now + lease_ms
  end
end

local is_left = has_rerouted and take_back_lent(ids)

-- If fewer than wanted were found, none are left, unless so many had to be parked that the next turn continues, or the queue
-- is at its limit.
local more = (n == want or is_limited) and redis.call('EXISTS', ready) == 1
local calls = more and not (is_limited and is_full())
if more then
  for i = 1, #tops, 2 do
    redis.call('HSET', clock, tops[i], tops[i + 1])
    -- The mark of the empty tenant is never behind: engine/push.lua relies on it without a check.
    if (tonumber(redis.call('HGET', clock, tops[i] .. ':') or 0) or 0) < tonumber(tops[i + 1]) then
      redis.call('HSET', clock, tops[i] .. ':', tops[i + 1])
    end
  end
  forget_marks(clock)
else
  redis.call('DEL', clock) -- ready is empty: virtual times start anew, without marks
end
if n == want then
  redis.call('ZREM', idle, worker)
  if calls or due_for_others() or looks_sooner() then -- there is more than this worker can take: pass the call on
    local other = wake()
    if other then ring(other, '') end
  end
  return { now, is_cut and now or 0, refused, ids, bodies, again, lost, errand_at or 0, unwanted }
end

if tonumber(idle_ms) > 0 then
  redis.call('ZADD', idle, now + idle_ms, worker)
  redis.call('PEXPIRE', idle, idle_ms * 2)
elseif calls or looks_sooner() then -- a custom loop does not wait for its bell, and may not come back
  local other = wake()
  if other then ring(other, '') end
end
-- What is left in a line for this worker is held back by the queue's own limit; no other worker would ask for it.
local look_at = is_left and math.min(now + 1000, is_limited and look_first() or math.huge) or is_limited and look_first()
local wake_at = calls and now or sooner(due_at, lease_end, look_at)
return { now, wake_at, refused, ids, bodies, again, lost, errand_at or 0, unwanted }
