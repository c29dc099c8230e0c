--[[ Queue a job that replaces a dead letter. Idempotent. The dead letter stays readable, has `replaced_by`, and can no longer
be retried.
KEYS  jobs ready clock names idle bell stats ended dead alike kinds
ARGV  id         id    the dead letter
      new_id     id    the new job
      priority   int   its level
      tenant     text  its tenant, or ''
      weight     num   its tenant's weight
      body       json  its body
      name       text  the name that the dead letter had, or ''; not taken if another job has it
      keep_ms    int   how long the counters live without traffic
GIVES 1 queued, 0 it is no dead letter any more, -1 other jobs wait for that very job ]]
-- @include store/ended_key
-- @include store/alike_key
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
-- @include engine/tally
-- @include dead/error_groups
local key = ended_key(id)
local record = redis.call('GET', key)
if not record then return 0 end
if string.find(head_of(record), '"replaced_by":"' .. new_id .. '"', 1, true) then return 1 end -- a repeated call
if not redis.call('ZSCORE', dead, id) then return 0 end
-- The callback of a message was notified of its end, and does not wait any more.
if string.find(string.match(record, '^{"token":%d+,"edges":"([^"]*)"') or '', '>[^b]') then return -1 end
redis.call('ZREM', dead, id)
leave_alike(id, record)
local at = string.find(record, '"state":"dead"', 1, true)
redis.call('SET', key, string.sub(record, 1, at - 1) .. '"replaced_by":"' .. new_id .. '",' .. string.sub(record, at), 'KEEPTTL')
redis.call('HSET', jobs, new_id, body)
if name ~= '' then redis.call('HSETNX', names, name, new_id) end
redis.call('ZADD', ready, place(priority, tenant, weight), new_id)
keep_marks()
tally('replaced', 1)
tally('enqueued', 1)
local worker = wake()
if worker then ring(worker, '') end
return 1
