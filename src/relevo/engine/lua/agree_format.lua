--[[ Agree on the format of the keys of an app or of the bus, and put names on one of its lists, before the first call
that writes anything else. The list expires when it is no longer used.
KEYS  format     string  `format least`: of the keys, and the oldest one whose processes can work beside them
      list       zset    name, when it was last used
ARGV  formats    string  `ours least reads`: the format this process writes, the oldest one whose processes can work
                         beside it, and the oldest one whose keys it can process. In one word: an unauthenticated client
                         may send only ten, and must get the error that names the missing password
      kept       int     how long the number is kept without use, ms
      ttl        int     TTL of the list without use, ms
                         then the names
GIVES format least     as they were found, 0 if missing; raised to ours if that is newer and compatible.
                       If the two are incompatible, nothing was written ]]
-- @include store/now
redis.call('PEXPIRE', list, ttl) -- first, as in store/lua/include/afford.lua: clients that make room on a full server need it, too
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
