--[[ Agree on the format of the keys of an app or of the bus, and put names on one of its lists, before the first call
that writes anything else. The list ends by itself when nobody uses it any more.
KEYS  format     string  `format least`: of the keys, and the oldest one whose processes can work beside them
      list       zset    name, when it was last heard of
ARGV  formats    string  `ours least reads`: the format this process writes, the oldest one whose processes can work
                         beside it, and the oldest one whose keys it works off. In one: without a password a server
                         takes ten words of a command, and is to say what it lacks
      kept       int     how long the number is kept without use, ms
      ttl        int     how long the list lives without use, ms
                         then the names
GIVES format least     as they were found, 0 where none was written down; raised to ours if that is newer and fits.
                       If the two do not get along, nothing was written ]]
-- @include now
redis.call('PEXPIRE', list, ttl) -- first, as in include/afford.lua: also for those who make room on a full server
local is, others = string.match(redis.call('GET', format) or '', '^(%d+) (%d+)$')
is, others = tonumber(is or 0), tonumber(others or 0)
local ours, least, reads = string.match(formats, '^(%d+) (%d+) (%d+)$')
ours, least, reads = tonumber(ours), tonumber(least), tonumber(reads)
if ours >= others and is >= reads then
  if ours > is then
    redis.call('SET', format, string.format('%d %d', ours, math.max(others, least)), 'PX', kept)
  else
    redis.call('PEXPIRE', format, kept)
  end
  for i = 4, #ARGV do redis.call('ZADD', list, string.format('%d', now), ARGV[i]) end
  redis.call('PEXPIRE', list, ttl)
end
return { is, others }
