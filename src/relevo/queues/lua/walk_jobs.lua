--[[ Some jobs in one state, from a place on: jobs that come and go do not shift it.
KEYS  jobs ready scheduled running waiting claims story done dead cancelled expired
      ended      -     prefix of records of finished jobs
ARGV  state      word  which set
      after_id   text  the job behind which to begin; '': at the beginning
      score      num   its score
      limit      int   entries looked at, at the most
      bytes      int   no more jobs once so many bytes of bodies and records are read
GIVES ids, scores, bodies or records, claims, stories, how many entries were looked at,
      id and score of the last of them ('' at the end of the set) ]]
-- @include store/ended_key
local set = ({ ready = ready, scheduled = scheduled, running = running, waiting = waiting, done = done, dead = dead, cancelled = cancelled, expired = expired })[state]
local living = state == 'ready' or state == 'scheduled' or state == 'running' or state == 'waiting'
local after = after_id ~= '' and tonumber(score)
-- live jobs are listed in the order in which they will run, ended ones newest first
local from = 0
if after then
  local rank = redis.call(living and 'ZRANK' or 'ZREVRANK', set, after_id)
  if rank and tonumber(redis.call('ZSCORE', set, after_id)) == after then
    from = rank + 1
  elseif living then
    from = redis.call('ZCOUNT', set, '-inf', '(' .. score)
  else
    from = redis.call('ZCOUNT', set, '(' .. score, '+inf')
  end
end
local rows = redis.call(living and 'ZRANGE' or 'ZREVRANGE', set, from, from + limit - 1, 'WITHSCORES')
local ids, scores, texts, held, histories, looked, size = {}, {}, {}, {}, {}, 0, 0
local last_id, last_score = '', ''
for i = 1, #rows, 2 do
  local id, at = rows[i], rows[i + 1]
  if size >= tonumber(bytes) then break end
  looked, last_id, last_score = looked + 1, id, at
  local is_before = after and tonumber(at) == after and (living and id <= after_id or not living and id >= after_id)
  local text = not is_before and (living and redis.call('HGET', jobs, id) or not living and redis.call('GET', ended_key(id)))
  if text then
    ids[#ids + 1], scores[#scores + 1], texts[#texts + 1] = id, at, text
    held[#held + 1] = living and redis.call('HGET', claims, id) or ''
    histories[#histories + 1] = living and redis.call('HGET', story, id) or ''
    size = size + #text
  end
end
if from + looked >= redis.call('ZCARD', set) then last_id, last_score = '', '' end
return { ids, scores, texts, held, histories, looked, last_id, last_score }
