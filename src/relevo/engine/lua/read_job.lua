--[[ All facts about one job, in one consistent read.
KEYS  jobs ready scheduled running waiting carried claims story idle rerouted offers instances
      ended      -     prefix of records of finished jobs
      notes      -     prefix of progress and logs
ARGV  id         id    the job
GIVES state ('' : unknown), score, body, claim, story, record, notes as field, value, ...,
      how many jobs it still waits for,
      how many live workers take it, if it waits for one that does; else -1 ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/now
-- @include engine/takers
local written = redis.call('HGETALL', notes_key(id))
local body = redis.call('HGET', jobs, id)
if not body then
  local record = redis.call('GET', ended_key(id))
  return { record and 'ended' or '', '', '', '', '', record or '', written, 0, -1 }
end
local claim, past = redis.call('HGET', claims, id) or '', redis.call('HGET', story, id) or ''
local score = redis.call('ZSCORE', running, id)
if score then return { 'running', score, body, claim, past, '', written, 0, -1 } end
score = redis.call('ZSCORE', ready, id)
if score then return { 'ready', score, body, claim, past, '', written, 0, -1 } end
score = redis.call('ZSCORE', waiting, id)
if score then
  return { 'waiting', score, body, claim, past, '', written, tonumber(redis.call('HGET', carried_key(id), 'open')) or 0, -1 }
end
score = redis.call('ZSCORE', scheduled, id)
local target, refusals = string.match(redis.call('HGET', rerouted, id) or '', '^(.*)\n(.*)$')
local takers = score and target and #takers_of(target, refusals) or -1
return { score and 'scheduled' or '', score or '', body, claim, past, '', written, 0, takers }
