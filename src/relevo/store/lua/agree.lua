--[[ Agree on the format of the keys of an app or of the bus, before the first call that writes any.
KEYS  format     string  `format least`: of the keys, and the oldest one whose processes can work beside them
ARGV  ours       int     the format this process writes
      least      int     the oldest format whose processes can work beside ours
      reads      int     the oldest format whose keys this process works off
      ttl        int     how long the number is kept without use, ms
GIVES format least     as they were found, 0 where none was written down; raised to ours if that is newer and fits ]]
local found = redis.call('GET', format) or ''
local is, others = string.match(found, '^(%d+) (%d+)$')
is, others = tonumber(is or 0), tonumber(others or 0)
ours, least, reads = tonumber(ours), tonumber(least), tonumber(reads)
if ours >= others and is >= reads then
  if ours > is then
    redis.call('SET', format, string.format('%d %d', ours, math.max(others, least)), 'PX', ttl)
  else
    redis.call('PEXPIRE', format, ttl)
  end
end
return { is, others }
