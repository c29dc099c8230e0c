--[[ Health of a pool: how many entities are in each state, since when, and for too long; and its dead letters. Changes nothing,
and costs the same however many there are: mean ages are those of a sample.
KEYS  states placed dead stats
      entities   zset  all entities of the pool, by their last change
      ended      -     prefix of dead letters
ARGV  stuck_ms   int   in a state for so long, an entity counts as stuck
      recent_ms  int   dead letters of this span are also counted apart
      sample     int   entities of a state whose age is read
      most       int   states that are reported
      letters    int   dead letters whose state of origin is read
GIVES now, dead letters, recent ones, counters as field, value, ..., entities in no state, states that some dead letters came from; then per state: word, how many, since when the oldest is there, stuck ones, mean
      time of entry of the sample ]]
-- @include store/ended_key
-- @include store/placed_key
-- @include store/now
-- @include engine/count_expired
local function before(ms) return string.format('%d', now - ms) end
local reply = { now, still_there(dead), redis.call('ZCOUNT', dead, before(recent_ms), '+inf'), redis.call('HGETALL', stats), redis.call('ZCARD', entities), {} }
for _, id in ipairs(redis.call('ZRANDMEMBER', dead, letters)) do
  -- It stands before all that may be long. In a text that another program chose, its quotes would be escaped.
  local from = string.match(redis.call('GETRANGE', ended_key(id), 0, 4095), '"queue_from":"([^"]*)"')
  if from then reply[6][#reply[6] + 1] = from end
end
for _, state in ipairs(redis.call('ZRANGE', states, 0, most - 1)) do
  local set = placed_key(state)
  local size, rows, sum = redis.call('ZCARD', set), redis.call('ZRANDMEMBER', set, sample, 'WITHSCORES'), 0
  for i = 2, #rows, 2 do sum = sum + rows[i] end
  if size > 0 then
    reply[5] = reply[5] - size
    reply[#reply + 1] = state
    reply[#reply + 1] = size
    reply[#reply + 1] = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
    reply[#reply + 1] = redis.call('ZCOUNT', set, '-inf', before(stuck_ms))
    reply[#reply + 1] = string.format('%.0f', sum / (#rows / 2))
  end
end
return reply
