--[[ Remove a schedule and its history. Jobs it has queued stay.
KEYS  schedules ticks errands runs pauses
ARGV  name       text  the schedule
GIVES 1 if there was one ]]
-- @include store/runs_key
redis.call('ZREM', errands, '@' .. name)
for _, field in ipairs({ 'times', 'due', 'code', 'paused', 'seen', 'job', 'fired', 'dropped', 'skipped' }) do
  redis.call('HDEL', ticks, field .. ':' .. name)
end
redis.call('DEL', runs_key(name))
redis.call('HDEL', pauses, 's:' .. name)
return redis.call('HDEL', schedules, name)
