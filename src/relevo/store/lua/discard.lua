--[[ Forget an ended job.
KEYS  ended      -     prefix of records of finished jobs
      notes      -     prefix of progress and logs
      stats      hash  counters
      done dead cancelled expired
ARGV  keep_ms    int   how long the counters live without traffic
                       then the ids
GIVES how many there were ]]
-- @include tally
local gone = 0
for i = 2, #ARGV do
  local id = ARGV[i]
  redis.call('ZREM', done, id)
  redis.call('ZREM', dead, id)
  redis.call('ZREM', cancelled, id)
  redis.call('ZREM', expired, id)
  redis.call('DEL', notes .. ':' .. id)
  gone = gone + redis.call('DEL', ended .. ':' .. id)
end
if gone > 0 then tally('discarded', gone) end
return gone
