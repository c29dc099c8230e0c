--[[ A part of the dead letters of a queue, or of those that died alike, in the order of their deaths. It is found by its
place, in as many steps as the list has levels, wherever that is.
KEYS  dead
      ended      -     prefix of records of finished jobs
      alike      -     prefix of the lists of those that died alike
ARGV  kind       text  fingerprint of those that are wanted; '': all
      since      num   those that died at this time or later; -inf
      upto       num   or not after this one; +inf
      score      num   behind the place of this time and id; '': from the beginning
      id         id
      with_it    flag  1: whoever stands at that place, too
      oldest     flag  1: the oldest first
      limit      int   at most so many
      bytes      int   and about so many bytes
GIVES ids, times, records, time and id of the last one looked at, how many there are behind it ]]
local index = kind == '' and dead or alike .. ':' .. kind
local function count_below(past) -- how many stand before the place; with `past`, or at it
  local low, high = redis.call('ZCOUNT', index, '-inf', '(' .. score), redis.call('ZCOUNT', index, '-inf', score)
  while low < high do
    local middle = math.floor((low + high) / 2)
    local one = redis.call('ZRANGE', index, middle, middle)[1]
    if one < id or (past and one == id) then low = middle + 1 else high = middle end
  end
  return low
end
local first, last = redis.call('ZCOUNT', index, '-inf', '(' .. since), redis.call('ZCOUNT', index, '-inf', upto) - 1
if score ~= '' then
  if oldest == '1' then first = math.max(first, count_below(with_it ~= '1'))
  else last = math.min(last, count_below(with_it == '1') - 1) end
end
local ids, scores, texts, behind = {}, {}, {}, math.max(0, last - first + 1)
if behind == 0 then return { ids, scores, texts, '', '', 0 } end
local from, to = first, math.min(last, first + limit - 1)
if oldest ~= '1' then from, to = math.max(first, last - limit + 1), last end
local rows, size = redis.call('ZRANGE', index, from, to, 'WITHSCORES'), 0
local at, step = 1, 2
if oldest ~= '1' then at, step = #rows - 1, -2 end
local seen = at
while rows[at] and size < tonumber(bytes) do
  local one = rows[at]
  local text = redis.call('GET', ended .. ':' .. one)
  -- a job that was revived has a record of another kind once it has ended, if this list was not told
  if text and (kind == '' or redis.call('ZSCORE', dead, one)) then
    ids[#ids + 1], scores[#scores + 1], texts[#texts + 1] = one, rows[at + 1], text
    size = size + #text
  end
  seen = at
  behind = behind - 1
  at = at + step
end
return { ids, scores, texts, rows[seen + 1], rows[seen], behind }
