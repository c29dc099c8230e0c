--[[ A page of jobs in one state.
KEYS  jobs ready scheduled running waiting claims done dead cancelled expired
      ended      -     prefix of records of finished jobs
ARGV  state      word  which set
      offset     int   from here
      limit      int   this many
GIVES ids, scores, bodies or records, claims ]]
-- @include store/ended_key
local set = ({ ready = ready, scheduled = scheduled, running = running, waiting = waiting, done = done, dead = dead, cancelled = cancelled, expired = expired })[state]
local living = state == 'ready' or state == 'scheduled' or state == 'running' or state == 'waiting'
-- live jobs are listed in the order in which they will run, ended ones newest first
local ids, scores, texts, held, passed = {}, {}, {}, {}, 0
for _ = 1, 10 do -- entries whose record has expired are skipped, and later ones take their place
  local from = offset + passed + #ids
  local rows = redis.call(living and 'ZRANGE' or 'ZREVRANGE', set, from, offset + passed + limit - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local id = rows[i]
    local text
    if living then text = redis.call('HGET', jobs, id) else text = redis.call('GET', ended_key(id)) end
    if text then
      ids[#ids + 1], scores[#scores + 1], texts[#texts + 1] = id, rows[i + 1], text
      held[#held + 1] = living and redis.call('HGET', claims, id) or ''
    else
      passed = passed + 1
    end
  end
  if #rows == 0 or #ids == tonumber(limit) then break end
end
return { ids, scores, texts, held }
