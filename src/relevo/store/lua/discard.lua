--[[ Forget ended jobs.
KEYS  ended      -     prefix of records of finished jobs
      notes      -     prefix of progress and logs
      carried    -     prefix of what jobs carry with them
      stats      hash  counters
      errands    zset  letters, by the time they are to be delivered
      letters    hash  their texts
      done dead cancelled expired
ARGV  keep_ms    int   how long the counters live without traffic
                       then the ids
GIVES how many there were, 1 if there is something to relay ]]
-- @include now
-- @include tally
-- @include post
-- @include errand
local gone = 0
for i = 2, #ARGV do
  local id = ARGV[i]
  redis.call('ZREM', done, id)
  redis.call('ZREM', dead, id)
  redis.call('ZREM', cancelled, id)
  redis.call('ZREM', expired, id)
  redis.call('DEL', notes .. ':' .. id)
  local record = redis.call('GET', ended .. ':' .. id)
  if record then
    -- Forgetting a job that failed does not make it one that went well: what waits for it will never run.
    give_up_on(id, record)
    redis.call('DEL', ended .. ':' .. id, carried .. ':' .. id)
    gone = gone + 1
  end
end
if gone > 0 then tally('discarded', gone) end
return { gone, errand_is_due() }
