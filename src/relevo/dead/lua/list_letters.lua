--[[ A page of the dead letters of a queue or of one error group, in the order of their deaths. Found by its position in
O(log n), wherever it is.
KEYS  dead
      ended      -     prefix of records of finished jobs
      alike      -     prefix of the ids of each error group
ARGV  kind       text  fingerprint of the error group; '': all
      since      num   only those that died at this time or later; -inf
      upto       num   only those that did not die later; +inf
      score      num   after the position of this time and id; '': from the beginning
      id         id
      with_it    flag  1: include the one at that position
      oldest     flag  1: oldest first
      limit      int   at most so many
      bytes      int   and about so many bytes
GIVES ids, times, records, time and id of the last one read, how many follow it ]]
-- @include store/ended_key
-- @include store/alike_key
local index = kind == '' and dead or alike_key(kind)
local function count_below(past) -- how many come before the position; with `past`, including it
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
  local text = redis.call('GET', ended_key(one))
  -- a revived job has another kind of record once it has ended again, if it was not removed from this index
  if text and (kind == '' or redis.call('ZSCORE', dead, one)) then
    ids[#ids + 1], scores[#scores + 1], texts[#texts + 1] = one, rows[at + 1], text
    size = size + #text
  end
  seen = at
  behind = behind - 1
  at = at + step
end
return { ids, scores, texts, rows[seen + 1], rows[seen], behind }
