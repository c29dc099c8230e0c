--[[ Figures of error groups.
KEYS  kinds      hash  fingerprint -> when it was first seen, and the head of its first record
      ended      -     prefix of records of finished jobs
      alike      -     prefix of the ids of each error group
ARGV  recent_ms  int   length of the recent span, up to now
      before_ms  int   length of the span before that
      sample     int   heads of the newest that are given
                       then fingerprints
GIVES per error group: when it was first seen and the head of its first record, size, when the last one died, how many in the
      recent span, how many in the span before, heads of the newest ]]
-- @include store/ended_key
-- @include store/alike_key
-- @include store/now
-- @include engine/record_head
-- @include engine/count_expired
local SHORT = 2000 -- bytes in which most heads end: longer ones are not sampled
local reply = {}
local late = now - recent_ms
for i = 4, #ARGV do
  local set = alike_key(ARGV[i])
  local heads = {}
  for _, id in ipairs(redis.call('ZRANGE', set, -sample, -1)) do
    heads[#heads + 1] = head_of(redis.call('GETRANGE', ended_key(id), 0, SHORT - 1))
  end
  reply[#reply + 1] = {
    redis.call('HGET', kinds, ARGV[i]) or '', still_there(set), redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2] or '',
    redis.call('ZCOUNT', set, '(' .. late, '+inf'), redis.call('ZCOUNT', set, '(' .. (late - before_ms), late), heads,
  }
end
return reply
