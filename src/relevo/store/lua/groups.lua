--[[ How dead letters that died alike stand, kind by kind.
KEYS  kinds      hash  kind, when its first was seen and what its head said
      ended      -     prefix of records of finished jobs
      alike      -     prefix of the lists of those that died alike
ARGV  recent_ms  int   how long ago is now
      before_ms  int   and how long before that is before
      sample     int   heads of the newest that are given
                       then fingerprints
GIVES per kind: when the first of it was seen and its head, how many there are, when the last one died, how many of late,
      how many before, heads of the newest ]]
-- @include now
-- @include head
-- @include gone
local SHORT = 2000 -- bytes in which most heads end: one that does not is no sample
local told = {}
local late = now - recent_ms
for i = 4, #ARGV do
  local set = alike .. ':' .. ARGV[i]
  local heads = {}
  for _, id in ipairs(redis.call('ZRANGE', set, -sample, -1)) do
    heads[#heads + 1] = head_of(redis.call('GETRANGE', ended .. ':' .. id, 0, SHORT - 1))
  end
  told[#told + 1] = {
    redis.call('HGET', kinds, ARGV[i]) or '', still_there(set), redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] or '',
    redis.call('ZCOUNT', set, '(' .. late, '+inf'), redis.call('ZCOUNT', set, '(' .. (late - before_ms), late), heads,
  }
end
return told
