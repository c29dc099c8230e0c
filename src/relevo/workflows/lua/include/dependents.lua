-- How a job that waits for others is notified of their ends. All it knows is in the hash carried:<id>:
--   since   when it was released, for its age
--   life    waits | freed (it may run) | cut (cancelled because of a parent); of a workflow: draft (until it is founded) | open | closed
--   open    parents it still waits for          bad   parents that forbid it to run
--   place   priority, when, weight, name and tenant, a line each: where it goes when it may run
--   takes   '' | 'one' | how many results it takes as a list        #<i>  the i-th of them
--   bound   of one that waits for a group: how many of its members may fail, and the text of the outbox message that cancels
--           the others when more do (workflows/stopping.py)
--   late    ids of those that joined late, in order                 #<id> the result of one of them; l:<id> who let it join
--   keep    ms its record is kept when it fails
--   prefer, else, interim, conversation   of a callback, see bus/store_callback.lua; its deadline is the outbox message <id>.late
--   s:<name>, p:<name>   checkpoints of a job that has begun: results of its steps, positions of its loops
--   h:<parent>  number, open, bad, state, when: the last report about a parent. One with a smaller number is ignored.
-- A policy in capitals is that of a member that joined later: its report counts only if it was announced (workflows/announce_members.lua).
-- Reports may come twice, late or in another order, with the same result; a job that was released is not held again.

-- Whether a parent in this state is still waited for, and whether it forbids to run.
-- Policies: c cancel, r run, w wait, f run only if it failed, n take note (a workflow of its members),
-- t the same, and a group tolerates its failure, b be its callback
local function weigh(state, policy)
  if policy == 'b' then return 0, 0 end
  if state == 'revived' then return 1, 0 end
  local well = state == 'done'
  if policy == 'n' or policy == 't' then return 0, well and 0 or 1 end
  if policy == 'f' then return well and 1 or 0, well and 1 or 0 end
  if well or policy == 'r' then return 0, 0 end
  -- A parent whose record has expired, or that never existed, cannot be retried.
  if policy == 'w' and state ~= 'discarded' and state ~= 'removed' and state ~= 'lapsed' then return 1, 0 end
  return 1, 1
end
-- The state as which a workflow counts the end of a member.
local COUNTED = { done = 'done', dead = 'dead', expired = 'expired', cancelled = 'cancelled', removed = 'cancelled', lapsed = 'cancelled' }
-- Nothing is kept of a plain member whose workflow has not started (workflows/store_members.lua). If its maker died, it gets
-- a bag now, so that it is cancelled like all others. `input`: its priority, and how long its record is kept.
local function unpack_member(child, bag, input)
  local priority, keep = string.match(input, '^(%d+) (%d+)$')
  if not priority or not redis.call('ZSCORE', waiting, child) or redis.call('EXISTS', bag) == 1 then return end
  redis.call('HSET', bag, 'life', 'waits', 'open', 1, 'bad', 0, 'keep', keep, 'takes', '', 'place', priority .. '\n\n1\n\n')
end
-- A workflow takes its name when it is created. false: another one has it.
local function take_name(flow, bag)
  local name, scope = unpack(redis.call('HMGET', bag, 'name', 'scope'))
  if not name then return true end
  if scope ~= 'until_done' then
    return redis.call('SET', unique_key(name), flow, 'NX', 'PX', scope) and true or redis.call('GET', unique_key(name)) == flow
  end
  local owner = redis.call('HGET', names, name)
  if owner and owner ~= flow and redis.call('HGET', carried_key(owner), 'life') == 'open' then return false end
  redis.call('HSET', names, name, flow)
  return true
end
-- nil: nothing new; else whether it forbids to run
local function hear(child, parent, number, state, policy, index, input)
  local bag = carried_key(child)
  if parent == 'gate' and input ~= '' then unpack_member(child, bag, input) end
  local known = redis.call('HMGET', bag, 'life', 'open', 'bad', 'h:' .. parent)
  if not known[1] or known[1] == 'freed' then return nil end
  -- The first report settles a callback. A revived message is no end: another report will come.
  if policy == 'b' and (known[2] == '0' or state == 'revived') then return nil end
  local last, was_open, was_bad, was = string.match(known[4] or '', '^(%d+) (%d) (%d) (%a+)')
  if policy == 'f' and state ~= 'done' and state ~= 'revived' then
    -- One failure is enough, even if the member was retried and is done before the report arrives.
    if was and was ~= 'done' and was ~= 'revived' then return nil end
  else
    if last and was ~= 'expected' and tonumber(last) >= tonumber(number) then return nil end
    if was == 'done' then return nil end -- a done job stays done, whatever another report says
  end
  -- A workflow that lost members before it was founded, because its maker took too long, is not created.
  if parent == 'gate' and known[1] == 'draft' and (known[3] ~= '0' or not take_name(child, bag)) then return nil end
  local is_open, is_bad
  if policy ~= string.lower(policy) then
    if not last then return nil end
    policy = string.lower(policy)
    if state == 'lapsed' then state, is_open, is_bad = 'excused', 0, 0 end -- as if it had not been announced
  end
  if not is_open then is_open, is_bad = weigh(state, policy) end
  local is_member = policy == 'n' or policy == 't'
  if is_member then state = COUNTED[state] or state end
  redis.call('HSET', bag, 'open', string.format('%d', known[2] + is_open - (was_open or 1)),
    'bad', string.format('%d', known[3] + is_bad - (was_bad or 0)),
    'h:' .. parent, string.format('%d', number) .. ' ' .. is_open .. ' ' .. is_bad .. ' ' .. state .. ' ' .. string.format('%d', now))
  if policy == 'b' then
    redis.call('HSET', bag, '#0', input)
    redis.call('ZREM', errands, child .. '.late')
    redis.call('HDEL', letters, child .. '.late')
    if state == 'timeout' then
      local late = redis.call('HGET', bag, 'else')
      if late and redis.call('HEXISTS', jobs, child) == 1 then redis.call('HSET', jobs, child, late) end
      redis.call('SET', unique_key(child), child, 'PX', 60000) -- should its maker, cut off so long, promise it again
    end
  elseif state == 'done' and index ~= '' then redis.call('HSET', bag, '#' .. (index == 'x' and parent or index), input) end
  if is_member then -- a workflow counts its members by their states
    if was and COUNTED[was] then redis.call('HINCRBY', bag, 'n:' .. was, -1) end
    if COUNTED[state] then redis.call('HINCRBY', bag, 'n:' .. state, 1) end
    if policy == 't' then
      local more = (COUNTED[state] and state ~= 'done' and 1 or 0) - (was and COUNTED[was] and was ~= 'done' and 1 or 0)
      if more ~= 0 then redis.call('HINCRBY', bag, 'tolerated', more) end
    end
  elseif parent == 'gate' and known[1] == 'draft' then -- a workflow is founded
    redis.call('HSET', bag, 'life', 'open')
    redis.call('PERSIST', bag)
    local edges = redis.call('HGET', bag, 'edges')
    if edges then
      redis.call('HDEL', bag, 'edges')
      redis.call('HSET', waiters, child, edges)
    end
  end
  return is_bad
end

local readied, cancelled_now = 0, 0
local function free(child, bag)
  local known = redis.call('HMGET', bag, 'place', 'takes', 'prefer', 'bound')
  if known[4] then redis.call('HSET', bag, 'open', 0, 'bad', 0) end -- failures that were tolerated do not forbid a retry
  local priority, when, weight, _, tenant = place_in(known[1])
  redis.call('ZREM', waiting, child)
  if stick(child, known[3]) then
    redis.call('HSET', bag, 'life', 'freed')
    return
  end
  if known[2] == '' then redis.call('DEL', bag) else redis.call('HSET', bag, 'life', 'freed', 'since', string.format('%d', now)) end
  put(child, priority, when, tenant, weight)
  readied = readied + 1
end
local function cut(child, bag, parent, state, policy, signature)
  local body = redis.call('HGET', jobs, child)
  if not body then return end
  local known = redis.call('HMGET', bag, 'place', 'keep', 'bound')
  local stop = parent ~= 'gate' and string.match(known[3] or '', '^%d+ (.+)$')
  if stop then post(child .. '.stop', 'stop\n' .. stop, now) end
  local history, claim = redis.call('HGET', story, child) or '', redis.call('HGET', claims, child) or '0'
  redis.call('ZREM', waiting, child)
  redis.call('HDEL', jobs, child)
  redis.call('HDEL', claims, child)
  redis.call('HDEL', story, child)
  local _, _, _, name = place_in(known[1])
  release(name, child)
  local keep = tonumber(string.match(known[2] or '', '^%d+$') or 0)
  local reason, why = 'dependency_failed', parent ~= '' and 'it depends on ' .. parent .. ', which is ' .. state or ''
  if parent == 'gate' then why = 'the process that enqueued it died before all of it was stored'
  elseif policy == 'f' then reason, why = 'not_needed', '' end
  -- A job whose gate was never opened never existed.
  file(cancelled, parent == 'gate' and 'lapsed' or 'cancelled', child, cancelled_record(body, history, 'waiting', reason, why, signature or ''), keep,
    string.match(claim, '^%d+') or '0')
  redis.call('HSET', bag, 'life', 'cut')
  redis.call('PEXPIRE', bag, keep)
  cancelled_now = cancelled_now + 1
end
local function uncut(child, bag)
  local record = redis.call('GET', ended_key(child))
  if not record or redis.call('ZREM', cancelled, child) == 0 then return false end
  local _, _, _, name = place_in(redis.call('HGET', bag, 'place'))
  bring_back(child, record, string.match(record, '\30(.*)$') or '', name)
  redis.call('HSET', bag, 'life', 'waits')
  redis.call('PERSIST', bag)
  redis.call('ZADD', waiting, now, child)
  tally('revived', 1)
  return true
end
-- A workflow ends when all its members have, in the worst of their states.
local function close(flow, bag)
  local n = redis.call('HMGET', bag, 'n:dead', 'n:expired', 'n:cancelled', 'keep', 'kept', 'tolerated')
  local state, ttl = 'done', tonumber(n[5])
  local failed = (tonumber(n[1] or 0) or 0) + (tonumber(n[2] or 0) or 0) + (tonumber(n[3] or 0) or 0)
  -- If a group has failed, what waits for it was cancelled, and that is not tolerated.
  for i, one in ipairs(failed > (tonumber(n[6] or 0) or 0) and { 'dead', 'expired', 'cancelled' } or {}) do
    if state == 'done' and tonumber(n[i] or 0) > 0 then state, ttl = one, tonumber(n[4]) end
  end
  release(redis.call('HGET', bag, 'name') or '', flow)
  local record = '{"state":"' .. state .. '","target":"workflow","ended_ms":' .. string.format('%d', now) .. ',"runs":0}'
  local edges = farewell(flow, record)
  redis.call('SET', ended_key(flow), record, 'PX', ttl)
  redis.call('HSET', bag, 'life', 'closed', 'state', state, 'edges', edges, 'ended', string.format('%d', now))
  redis.call('PEXPIRE', bag, ttl)
  local number = redis.call('HINCRBY', bag, 'number', 1)
  announce(flow, state, number, edges, '')
  if state ~= 'done' then no_longer_than(ttl, flow, number + 1, edges) end
end
local function reopen(flow, bag)
  local edges = redis.call('HGET', bag, 'edges') or ''
  redis.call('DEL', ended_key(flow))
  redis.call('HDEL', bag, 'state', 'edges', 'ended')
  redis.call('ZREM', errands, flow .. '.gone')
  redis.call('HDEL', letters, flow .. '.gone')
  redis.call('HSET', bag, 'life', 'open')
  redis.call('PERSIST', bag)
  local name = redis.call('HGET', bag, 'name')
  if name and redis.call('HGET', bag, 'scope') == 'until_done' then redis.call('HSETNX', names, name, flow) end
  if edges ~= '' then redis.call('HSET', waiters, flow, edges) end
  announce(flow, 'revived', redis.call('HINCRBY', bag, 'number', 1), edges, '')
end
local function judge(child, parent, state, policy, signature)
  local bag = carried_key(child)
  local known = redis.call('HMGET', bag, 'life', 'open', 'bad', 'bound')
  local life, open, bad = known[1], tonumber(known[2]), tonumber(known[3])
  if known[4] and bad > 0 and bad <= (tonumber(string.match(known[4], '^%d+')) or 0) then open, bad = open - bad, 0 end
  if life == 'waits' and redis.call('ZSCORE', waiting, child) then
    if bad > 0 then cut(child, bag, parent or '', state or '', policy, signature) elseif open == 0 then free(child, bag) end
  elseif life == 'cut' and bad == 0 then
    if uncut(child, bag) and open == 0 then free(child, bag) end
  elseif life == 'open' and open == 0 then close(child, bag)
  elseif life == 'closed' and open > 0 then reopen(child, bag)
  end
end
