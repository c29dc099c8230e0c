--[[ End or remove what is in its state for too long, each entry only if it has not changed since it was read. Ends are
announced like all others.
KEYS  jobs ready scheduled running waiting carried claims story groups clock names waiters stats idle bell errands letters
      parking parked limits holding lines pauses ended notes done dead cancelled expired strays alike kinds rerouted sought
      leader     string  who leads the upkeep of this queue
ARGV  keep_ms    int   how long the counters live without traffic
      done_max   int   unused here
      dead_max   int   records kept
      owner      id    who purges, and must lead
      lead_ms    int   how long the lead lasts from now
                       then per entry: id, state, score, claim, since, limit_ms, verb, ms, text, name, follow id, priority, body
                       verb dead, cancelled, expired: ended with the record `text` for `ms` (as in engine/turn.lua); removed: all its
                       keys are removed; noted: an id in no set is recorded with the time, and that note is kept for `ms`
GIVES per entry 1 done, 0 it has changed; last 1 if there is something to relay. Empty: another process leads ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/parked_key
-- @include store/alike_key
-- @include store/now
-- @include store/afford
if redis.call('GET', leader) ~= owner then return {} end
redis.call('PEXPIRE', leader, lead_ms)
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/tally
-- @include engine/end_job
-- @include engine/outbox_due
-- @include engine/tenant
-- @include engine/forget_job
-- @include limits/free_places
-- @include upkeep/orphans
-- @include limits/breaker
local sets = { ready = ready, scheduled = scheduled, running = running, waiting = waiting, done = done }
local index_of = { dead = dead, cancelled = cancelled, expired = expired }
-- Removes all of it, and notifies what waits for it.
local function drop(id, name, claim)
  forget(id, name)
  free_places(id)
  redis.call('HDEL', letters, id)
  -- What a failed job or an ended workflow carries has a TTL, and may be needed until then.
  if redis.call('PTTL', carried_key(id)) == -1 then redis.call('UNLINK', carried_key(id)) end
  tell(id, 'removed', '{"state":"cancelled","reason":"orphaned"}', string.match(claim, '^%d+') or 0)
end
-- An entry has not changed if its score and its claim have not: one of them changes with every move.
local function is_the_same(id, state, score, claim)
  local found = redis.call('ZSCORE', sets[state], id)
  return found and tonumber(found) == tonumber(score) and (state == 'done' or (redis.call('HGET', claims, id) or '') == claim)
end
-- Jobs held back by a pause or a breaker wait for its end. The caller has skipped them; the pause may have begun since.
local has_pauses = redis.call('EXISTS', pauses) == 1
local function is_held_back(id)
  if not has_pauses then return false end
  local body = redis.call('HGET', jobs, id) or ''
  local task = task_of(body) or ''
  for _, text in ipairs(redis.call('HMGET', pauses, 'q:', tenant_of(body) or '', task)) do
    local ends = text and tonumber(string.match(text, '^%d+ (%d+)'))
    if ends and (ends == 0 or ends > now) then return true end
  end
  return is_open(task)
end
local readied = 0
local function act(row)
  local id, state, claim, since, limit, verb = ARGV[row], ARGV[row + 1], ARGV[row + 3], ARGV[row + 4], ARGV[row + 5], ARGV[row + 6]
  local ms, text, name, follow = tonumber(ARGV[row + 7]), ARGV[row + 8], ARGV[row + 9], ARGV[row + 10]
  if state == 'orphaned' then
    if not remains(id, name) then
      redis.call('ZREM', strays, id)
      return 0
    end
    if verb == 'noted' then
      local is_new = redis.call('ZADD', strays, 'NX', string.format('%d', now), id)
      redis.call('PEXPIRE', strays, ms)
      return is_new
    end
    local noted = redis.call('ZSCORE', strays, id)
    if not noted or now - noted < tonumber(limit) then return 0 end
    redis.call('ZREM', strays, id)
    drop(id, name, claim)
    return 1
  end
  if not is_the_same(id, state, ARGV[row + 2], claim) or now - since < tonumber(limit) then return 0 end
  if verb == 'removed' and state == 'done' then
    redis.call('ZREM', done, id)
    redis.call('DEL', ended_key(id), notes_key(id))
    return 1
  end
  if verb == 'removed' then -- an entry without a body: a turn would drop it as well
    if redis.call('HEXISTS', jobs, id) == 1 then return 0 end
    redis.call('ZREM', sets[state], id)
    drop(id, '', claim)
    return 1
  end
  if verb ~= 'expired' and is_held_back(id) then return 0 end -- a job past its deadline would not run after the pause either
  redis.call('ZREM', sets[state], id)
  forget(id, name)
  redis.call('PEXPIRE', carried_key(id), math.max(1, ms)) -- needed for a revival
  file(index_of[verb], verb, id, text, ms, string.match(claim, '^%d+') or '0')
  tally(verb, 1)
  if follow ~= '' then
    redis.call('HSET', jobs, follow, ARGV[row + 12])
    redis.call('ZADD', ready, place(ARGV[row + 11], '', 1), follow)
    tally('enqueued', 1)
    readied = readied + 1
  end
  return 1
end
local reply, count = {}, {}
for i = 6, #ARGV, 13 do
  local did = act(i)
  reply[#reply + 1] = did
  if did == 1 and ARGV[i + 6] ~= 'noted' then count[ARGV[i + 1]] = (count[ARGV[i + 1]] or 0) + 1 end
end
for state, n in pairs(count) do tally('purged_' .. state, n) end
keep_marks()
if redis.call('EXISTS', ready) == 0 then redis.call('DEL', clock) end -- ready is empty: virtual times start anew
for _ = 1, readied do
  local worker = wake()
  if not worker then break end
  ring(worker, '')
end
reply[#reply + 1] = errand_is_due()
return reply
