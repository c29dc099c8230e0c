--[[ Look at a part of the jobs in one state for those that may be there for too long. Nothing is changed.
KEYS  jobs ready scheduled running waiting claims story done parking
      parked     -     prefix of the lines of groups and tasks that have a limit
      ended      -     prefix of records of finished jobs
ARGV  state      word  which set
      before_ms  int   there since then, or for longer: due, waiting, held, done. Ready is in order of priority: the time in the
                       id is asked, which is that of its making
      offset     int   from here
      most       int   how many are looked at
      bytes      int   about so many bytes of bodies
GIVES how many were looked at, 1 if there are more that may be so old, then per job: id, score, body (of one that is done, how
      its record begins), claim, story, bytes, 1 if it stands in a line ]]
local sets = { ready = ready, scheduled = scheduled, running = running, waiting = waiting, done = done }
local VALUES = {}
for i = 1, 32 do VALUES[string.byte('0123456789abcdefghjkmnpqrstvwxyz', i)] = i - 1 end
local function made_ms(id) -- as model/ids.py writes it; nil for what is no id of ours
  if #id ~= 20 then return nil end
  local ms = 0
  for _, byte in ipairs({ string.byte(id, 1, 9) }) do
    local digit = VALUES[byte]
    if not digit then return nil end
    ms = ms * 32 + digit
  end
  return ms
end
-- @include group
before_ms, most, bytes = tonumber(before_ms), tonumber(most), tonumber(bytes)
local has_lines = redis.call('EXISTS', parking) == 1
local function stands_in_line(id, body)
  if not has_lines then return 0 end
  for _, name in ipairs({ group_of(body) or '', task_of(body) or '' }) do
    if name ~= '' and redis.call('ZSCORE', parked .. ':' .. name, id) then return 1 end
  end
  return 0
end
-- By rank, not by score: an offset among scores would be walked to.
local rows = redis.call('ZRANGE', sets[state], offset, offset + most - 1, 'WITHSCORES')
local said, looked, size, is_end = { 0, 0 }, 0, 0, #rows / 2 < most
for i = 1, #rows, 2 do
  local id, score = rows[i], rows[i + 1]
  local since = tonumber(score)
  if state == 'ready' then since = made_ms(id) or -1
  elseif state == 'scheduled' then since = math.floor(score / 1024) end
  if since <= before_ms then
    local body, claim, told, length = '', '', '', 0
    if state == 'done' then
      length, body = redis.call('STRLEN', ended .. ':' .. id), redis.call('GETRANGE', ended .. ':' .. id, 0, 1023)
    else
      body = redis.call('HGET', jobs, id) or ''
      claim, told = redis.call('HGET', claims, id) or '', redis.call('HGET', story, id) or ''
      length = #body + #claim + #told
      size = size + length
    end
    local n = #said
    said[n + 1], said[n + 2], said[n + 3], said[n + 4], said[n + 5] = id, score, body, claim, told
    said[n + 6], said[n + 7] = length, stands_in_line(id, body)
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
said[1], said[2] = looked, is_end and 0 or 1
return said
