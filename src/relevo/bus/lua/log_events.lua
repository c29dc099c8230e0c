--[[ Write events into the log of the service that published them, for catch-up.
KEYS  log        stream  the events, oldest first
ARGV  keep_ms    int   how long they are kept
      most       int   how many are kept, at about
                       then per event: id, topic, when it was published, body
GIVES the position of the last ]]
-- @include store/now
-- Positions are made from the server's clock, and must grow even if it was set back. The log is never empty: its last entry
-- is younger than what is trimmed.
local last = redis.call('XREVRANGE', log, '+', '-', 'COUNT', 1)[1]
local ms, number = string.match(last and last[1] or '0-0', '^(%d+)%-(%d+)$')
ms, number = tonumber(ms), tonumber(number)
for i = 3, #ARGV, 4 do
  if now > ms then ms, number = now, 0 else number = number + 1 end
  redis.call('XADD', log, string.format('%d-%d', ms, number), 'id', ARGV[i], 'topic', ARGV[i + 1], 'at', ARGV[i + 2], 'body', ARGV[i + 3])
end
redis.call('XTRIM', log, 'MINID', '~', string.format('%d', now - keep_ms))
redis.call('XTRIM', log, 'MAXLEN', '~', most)
redis.call('PEXPIRE', log, keep_ms)
return string.format('%d-%d', ms, number)
