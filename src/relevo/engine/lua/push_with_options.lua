--[[ Put jobs with options on their queue, each unless its id or its name is taken: with a time, a tenant, a name, or with
parents to wait for. A workflow is created here too, in the same step as its first members.

KEYS  jobs       hash  bodies of living jobs
      ready      zset  priority and fair tag
      scheduled  zset  due time * 1024 + priority
      waiting    zset  jobs that wait for others, since when
      carried    -     prefix of what jobs carry with them, see workflows/lua/include/dependents.lua
      waiters    hash  id -> inboxes and edges to notify of its end
      errands    zset  outbox messages, by the time they are due
      letters    hash  their texts
      flows      zset  workflows, by the time they began
      running    zset  lease deadline
      groups     hash  "weight tenant" of scheduled jobs that have a tenant
      clock      hash  virtual times of the fair tags
      names      hash  name -> the living job that has it
      unique     -     prefix of names held for a time
      ended      -     prefix of records of finished jobs
      stats      hash  counters
      idle       zset  workers that wait, until when they count as alive
      bell       -     prefix of the workers' bells
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      keep_ms    int   how long the counters live without traffic
      queue      text  the queue, as edges name it
      gate_ms    int   gated jobs are cancelled after so long if their gate is not opened
      list_ms    int   TTL of the list of workflows without a new one
      once_ms    int   0, or how long it is known that these jobs were stored: a later call, also of another process, stores none twice
                       then per job: id, priority, body, when, tenant, weight, name, scope, needs, edges
                       needs: '' | 'w' or 'g' (gated), parents, keep, takes[;bound] | 'f' or 'F' (a workflow, gated; its results in the place of the tenant),
                       members, keep, kept
                       scope: 'until_done', 'queued', milliseconds; 'add': stored also where the name is taken
GIVES per job the id that has the name (its own: stored) ]]
-- @include store/ended_key
-- @include store/carried_key
-- @include store/unique_key
-- @include engine/accept_call
-- @include engine/keep_answer
if was_done then
  local as_then = {}
  for owner in string.gmatch(said_then or '', '%S+') do as_then[#as_then + 1] = owner end
  if #as_then == 0 then
    for i = 8, #ARGV, 10 do as_then[#as_then + 1] = ARGV[i] end
  end
  return as_then
end
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/tally
-- @include engine/outbox

local function taken(id) -- for calls that may come twice: ids are made by the client and never used twice
  if once_ms ~= '0' and not redis.call('SET', unique_key('once ' .. id), '', 'NX', 'PX', once_ms) then return true end
  return is_repeated and (redis.call('HEXISTS', jobs, id) == 1 or redis.call('EXISTS', ended_key(id), carried_key(id)) > 0)
end
local function wake_for(n)
  for _ = 1, math.min(n, 64) do
    local worker = wake()
    if not worker then return end
    ring(worker, '')
  end
end

local owners, stored, is_founded, is_taken = {}, 0, false, false
local bodies, entries, timed, new, gated = {}, {}, {}, {}, {} -- written together at the end: a call for each job costs twice as much
local head = redis.call('ZRANGE', scheduled, 0, 0)[1]
for i = 8, #ARGV, 10 do
  local id, priority, body, when = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3]
  local tenant, weight, name, scope = ARGV[i + 4], ARGV[i + 5], ARGV[i + 6], ARGV[i + 7]
  local needs, edges = ARGV[i + 8], ARGV[i + 9]
  -- A workflow that exists came with all its jobs in this very call: those that are missing now have ended.
  local owner = (is_founded or taken(id)) and id
  if owner and string.match(needs, '^[fF]') then is_founded = true end
  if name ~= '' and not owner and string.sub(needs, 1, 1) ~= 'F' then -- a gated workflow takes its name when it is created
    local for_ms = tonumber(scope)
    if for_ms then
      owner = redis.call('GET', unique_key(name))
      if not owner then redis.call('SET', unique_key(name), id, 'PX', for_ms) end
    else
      owner = redis.call('HGET', names, name)
      if owner and not new[owner] and redis.call('HEXISTS', jobs, owner) == 0 and redis.call('HGET', carried_key(owner), 'life') ~= 'open' then owner = false end
      if owner and scope == 'queued' and redis.call('ZSCORE', running, owner) then owner = false end
      if not owner then redis.call('HSET', names, name, id)
      elseif scope == 'add' then owner = false end -- it is stored, and the name stays with the other one
    end
    if owner and string.sub(needs, 1, 1) == 'f' then is_founded = true end -- nothing of this workflow is stored
  end
  owners[#owners + 1] = owner or id
  is_taken = is_taken or (owner and owner ~= id)
  if not owner then
    local kind, parents, keep, takes = string.match(needs, '^(%a) (%d+) (%d+) ?(.*)$')
    local is_flow = kind == 'f' or kind == 'F'
    if not is_flow then
      stored = stored + 1
      new[id] = true
      bodies[#bodies + 1] = id
      bodies[#bodies + 1] = body
    end
    if edges ~= '' then
      -- A workflow that is not created yet may never be: its edges expire with it.
      if kind == 'F' then redis.call('HSET', carried_key(id), 'edges', edges)
      else redis.call('HSET', waiters, id, edges) end
    end
    local due = 0
    if string.sub(when, 1, 1) == '+' then due = now + tonumber(string.sub(when, 2))
    elseif when ~= '' then due = tonumber(when) end
    if is_flow then
      redis.call('HSET', carried_key(id), 'life', kind == 'F' and 'draft' or 'open', 'open', parents, 'bad', 0, 'keep', keep, 'kept', takes,
        'number', 0, 'began', string.format('%d', now), 'plan', body,
        'takes', tenant)
      if name ~= '' then redis.call('HSET', carried_key(id), 'name', name, 'scope', scope) end
      redis.call('ZADD', flows, now, id)
      redis.call('ZREMRANGEBYRANK', flows, 0, -10001) -- only the list is capped
      redis.call('PEXPIRE', flows, list_ms)
      if kind == 'F' then redis.call('PEXPIRE', carried_key(id), gate_ms * 2) end -- until it is created
    elseif kind then
      redis.call('HSET', carried_key(id), 'life', 'waits', 'open', parents, 'bad', 0, 'keep', keep, 'takes', takes,
        'place', table.concat({ priority, when, weight, name, tenant }, '\n'))
      local own, bound = string.match(takes, '^([^;]*);(.*)$')
      if bound then redis.call('HSET', carried_key(id), 'takes', own, 'bound', bound) end
      redis.call('ZADD', waiting, now, id)
      if kind == 'g' then gated[#gated + 1] = '>c:' .. id .. queue end
    elseif due > now then
      timed[#timed + 1] = string.format('%d', due * 1024 + priority)
      timed[#timed + 1] = id
      if tenant ~= '' then redis.call('HSET', groups, id, weight .. ' ' .. tenant) end
    else
      entries[#entries + 1] = place(priority, tenant, weight)
      entries[#entries + 1] = id
    end
  end
end
if is_taken then remember(table.concat(owners, ' ')) end
if #gated > 0 then -- in case the caller dies before it has stored everything
  post(string.sub(gated[1], 4, 23) .. '.gate', 'cancelled 0 gate\n' .. table.concat(gated, ' ') .. '\n', now + gate_ms)
end
if stored > 0 then
  redis.call('HSET', jobs, unpack(bodies))
  if #entries > 0 then redis.call('ZADD', ready, unpack(entries)) end
  if #timed > 0 then redis.call('ZADD', scheduled, unpack(timed)) end
  keep_marks()
  tally('enqueued', stored)
  -- A new earliest due time must reach one idle worker, whose timer was set for a later one.
  local first = #timed > 0 and redis.call('ZRANGE', scheduled, 0, 0)[1] ~= head
  wake_for(math.max(#entries / 2, first and 1 or 0))
end
return owners
