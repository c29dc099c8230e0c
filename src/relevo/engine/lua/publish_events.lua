--[[ Publish what happened to jobs of this queue, to the processes that watch them.
KEYS  watching   hash  id, or '*' for all jobs -> until when which channels watch
ARGV  mark       text  how such a message begins
                       then per event: id, text
GIVES 1, or 0: the queue is not watched any more ]]
-- @include store/now
if redis.call('EXISTS', watching) == 0 then return 0 end
for i = 2, #ARGV, 2 do
  local has_it = {} -- a process may watch the job and all jobs
  for _, watchers in ipairs(redis.call('HMGET', watching, ARGV[i], '*')) do
    for till, channel in string.gmatch(watchers or '', '(%d+) (%S+)') do
      if tonumber(till) > now and not has_it[channel] then
        has_it[channel] = true
        redis.pcall('PUBLISH', channel, mark .. ARGV[i + 1])
      end
    end
  end
end
return 1
