--[[ Lead a replay of dead letters: begin or take it over, record its progress, or ask its leader to stop.
KEYS  replays    zset  replays, by their last sign of life
      replay     -     prefix of the state of each
ARGV  run        id    the replay
      verb       word  take, note, end (a last note), or stop
      owner      id    its leader, or the caller that wants to lead
      live_ms    int   TTL of its state
      silent_ms  int   a leader without a sign of life for so long counts as dead
      most       int   replays remembered
      text       json  its progress
GIVES 1, and 'stop' if that was asked for; 0 if another owner leads it, or it does not exist; the progress noted before ]]
-- @include store/replay_key
-- @include store/now
redis.call('ZREM', replays, '') -- as in store/lua/include/afford.lua: dead letters are replayed on a full server, so progress must be noted
local key = replay_key(run)
local known = redis.call('HMGET', key, 'owner', 'beat', 'text', 'wish')
local is_led = known[1] and known[1] ~= '' and now - tonumber(known[2]) < tonumber(silent_ms)
local before = known[3] or ''
if verb == 'stop' then
  if not known[1] then return { 0, '', '' } end
  redis.call('HSET', key, 'wish', 'stop')
  return { 1, is_led and 'stop' or '', before }
end
if known[1] ~= owner and (verb ~= 'take' or is_led) then return { 0, '', before } end
if verb == 'take' then
  redis.call('HDEL', key, 'wish')
  text = known[3] or text -- a new leader continues from the noted progress
end
redis.call('HSET', key, 'owner', verb == 'end' and '' or owner, 'beat', string.format('%d', now), 'text', text)
redis.call('PEXPIRE', key, live_ms)
redis.call('ZADD', replays, now, run)
redis.call('PEXPIRE', replays, live_ms)
redis.call('ZREMRANGEBYRANK', replays, 0, -most - 1)
return { 1, verb == 'note' and known[4] or '', before }
