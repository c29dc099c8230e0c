--[[ Delete ended jobs. Dead letters can be restored for a while (dead/restore_letters.lua), if `undo_ms` says so.
KEYS  ended      -     prefix of records of finished jobs
      notes      -     prefix of progress and logs
      carried    -     prefix of what jobs carry with them
      binned     -     prefix of records that can be restored
      bin        zset  their ids, by when they were discarded
      stats      hash  counters
      errands    zset  outbox messages, by the time they are due
      letters    hash  their texts
      done dead cancelled expired alike kinds
ARGV  keep_ms    int   how long the counters live without traffic
      undo_ms    int   how long a dead letter can be restored; 0: not at all
                       then the ids
GIVES how many there were, 1 if there is something to relay ]]
-- @include store/ended_key
-- @include store/notes_key
-- @include store/carried_key
-- @include store/alike_key
-- @include store/binned_key
-- @include store/now
-- @include engine/tally
-- @include engine/outbox
-- @include engine/outbox_due
-- @include dead/error_groups
local function shorten(key, ms) -- cap a key's TTL
  if redis.call('PTTL', key) > ms then redis.call('PEXPIRE', key, ms) end
end
local gone = 0
undo_ms = tonumber(undo_ms)
for i = 3, #ARGV do
  local id = ARGV[i]
  local record, own = ended_key(id), carried_key(id)
  redis.call('ZREM', done, id)
  local was_dead = redis.call('ZREM', dead, id) == 1
  redis.call('ZREM', cancelled, id)
  redis.call('ZREM', expired, id)
  local head = redis.call('GETRANGE', record, 0, HEAD - 1)
  if head ~= '' then
    -- Deleting a failed job does not count as success: its dependents will never run.
    if string.find(head, '^{"token":%d+,"edges":') then give_up_on(id, redis.call('GET', record)) end
    if was_dead then leave_alike(id, head) end
    gone = gone + 1
  end
  if head ~= '' and was_dead and undo_ms > 0 then
    local until_ms = now + redis.call('PTTL', record)
    redis.call('APPEND', record, string.format('%015d', until_ms)) -- the end of its own TTL, for its restoration
    redis.call('RENAME', record, binned_key(id))
    for _, key in ipairs({ binned_key(id), own, notes_key(id) }) do shorten(key, undo_ms) end
    redis.call('ZADD', bin, now, id)
    redis.call('PEXPIRE', bin, undo_ms)
  elseif head ~= '' then -- else it was revived or discarded before: its other keys stay
    redis.call('DEL', record, own, notes_key(id))
  end
end
if undo_ms > 0 then redis.call('ZREMRANGEBYSCORE', bin, '-inf', now - undo_ms) end
if gone > 0 then tally('discarded', gone) end
return { gone, errand_is_due() }
