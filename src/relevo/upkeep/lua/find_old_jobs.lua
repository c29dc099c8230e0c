--[[ Scan a part of the jobs in one state for those that may be there for too long. Changes nothing.
KEYS  jobs ready scheduled running waiting claims story done parking
      parked     -     prefix of the lines of tenants and tasks with a limit
      ended      -     prefix of records of finished jobs
ARGV  state      word  which set
      before_ms  int   in it since then or earlier: due, waiting, held, done. Ready is in order of priority: there the creation
                       time in the id counts
      offset     int   from here
      most       int   how many are scanned
      bytes      int   about so many bytes of bodies
GIVES how many were scanned, 1 if there are more that may be so old, then per job: id, score, body (of a done one, how its
      record begins), claim, story, bytes, 1 if it is in a line ]]
-- @include store/ended_key
-- @include store/parked_key
local sets = { ready = ready, scheduled = scheduled, running = running, waiting = waiting, done = done }
local VALUES = {}
for i = 1, 32 do VALUES[string.byte('0123456789abcdefghjkmnpqrstvwxyz', i)] = i - 1 end
local function made_ms(id) -- as engine/ids.py writes it; nil for any other id
  if #id ~= 20 then return nil end
  local ms = 0
  for _, byte in ipairs({ string.byte(id, 1, 9) }) do
    local digit = VALUES[byte]
    if not digit then return nil end
    ms = ms * 32 + digit
  end
  return ms
end
-- @include engine/tenant
before_ms, most, bytes = tonumber(before_ms), tonumber(most), tonumber(bytes)
local has_lines = redis.call('EXISTS', parking) == 1
local function stands_in_line(id, body)
  if not has_lines then return 0 end
  for _, name in ipairs({ tenant_of(body) or '', task_of(body) or '' }) do
    if name ~= '' and redis.call('ZSCORE', parked_key(name), id) then return 1 end
  end
  return 0
end
-- By rank, not by score: an offset among scores would cost a walk.
local rows = redis.call('ZRANGE', sets[state], offset, offset + most - 1, 'WITHSCORES')
local reply, looked, size, is_end = { 0, 0 }, 0, 0, #rows / 2 < most
for i = 1, #rows, 2 do
  local id, score = rows[i], rows[i + 1]
  local since = tonumber(score)
  if state == 'ready' then since = made_ms(id) or -1
  elseif state == 'scheduled' then since = math.floor(score / 1024) end
  if since <= before_ms then
    local body, claim, past, length = '', '', '', 0
    if state == 'done' then
      length, body = redis.call('STRLEN', ended_key(id)), redis.call('GETRANGE', ended_key(id), 0, 1023)
    else
      body = redis.call('HGET', jobs, id) or ''
      claim, past = redis.call('HGET', claims, id) or '', redis.call('HGET', story, id) or ''
      length = #body + #claim + #past
      size = size + length
    end
    local n = #reply
    reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4], reply[n + 5] = id, score, body, claim, past
    reply[n + 6], reply[n + 7] = length, stands_in_line(id, body)
  elseif state ~= 'ready' then
    is_end = true
    break
  end
  looked = looked + 1
  if size > bytes and i + 1 < #rows then
    is_end = false
    break
  end
end
reply[1], reply[2] = looked, is_end and 0 or 1
return reply
