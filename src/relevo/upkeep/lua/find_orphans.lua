--[[ Scan a part of all that is kept under ids for ids that are in no set. Changes nothing.
KEYS  jobs names claims story groups waiters holding letters ready scheduled running waiting errands
      carried    -     prefix of what jobs carry with them
      strays     zset  those that were found before, by when
ARGV  at         int   which of the first eight keys to begin with
      cursor     int   where in it
      most       int   about so many entries
      bytes      int   about so many bytes
GIVES where to continue: in which key (0: finished), where in it; how many entries were scanned; then per id that is in no set:
      id, the name it holds, since when it is known (0: unknown so far), claim, body, bytes ]]
-- @include store/carried_key
-- @include upkeep/orphans
at, most, bytes = tonumber(at), tonumber(most), tonumber(bytes)
-- Bodies are many and large: HSCAN them only if their count differs from the sizes of the sets.
local function adds_up()
  local placed = 0
  for _, set in ipairs({ ready, scheduled, running, waiting }) do placed = placed + redis.call('ZCARD', set) end
  return placed == redis.call('HLEN', jobs)
end
local reply, looked, size, count = { 0, '0', 0 }, 0, 0, 20 -- few at first: their size is unknown
while at <= #KEPT and looked < most and size < bytes do
  local rows, ids, named, placed = {}, {}, {}, {}
  if at > 1 or not adds_up() then
    local found = redis.call('HSCAN', KEPT[at], cursor, 'COUNT', count)
    cursor, rows = found[1], found[2]
  end
  for i = 1, #rows, 2 do
    local field, text = rows[i], rows[i + 1]
    if at == NAMES then ids[#ids + 1], named[text] = text, field
    elseif at ~= HOLDING or string.sub(field, 1, 1) ~= '#' then ids[#ids + 1] = field end
    looked, size = looked + 1, size + #text
  end
  if #ids > 0 then
    for _, set in ipairs(SETS) do
      for i, score in ipairs(redis.call('ZMSCORE', set, unpack(ids))) do placed[i] = placed[i] or score end
    end
  end
  for i, id in ipairs(ids) do
    local left = not placed[i] and remains(id, named[id] or '')
    if left then
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3] = id, named[id] or '', redis.call('ZSCORE', strays, id) or '0'
      reply[n + 4], reply[n + 5], reply[n + 6] = redis.call('HGET', claims, id) or '', redis.call('HGET', jobs, id) or '', left
    end
  end
  if cursor == '0' then at, count = at + 1, 20
  else count = string.format('%d', math.max(20, math.min(200, (bytes - size) * looked / (size + 1)))) end
end
reply[1], reply[2], reply[3] = at <= #KEPT and at or 0, cursor, looked
return reply
