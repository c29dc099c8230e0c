--[[ Lead a replay of dead letters: begin or take it over, write down how far it is, or ask its leader to stop.
KEYS  replays    zset  replays, by when they were last heard of
      replay     -     prefix of what is known of one
ARGV  run        id    the replay
      verb       word  take, note, end (a last note), or stop
      owner      id    who leads it, or wants to
      live_ms    int   how long it is remembered
      silent_ms  int   a leader that said nothing for so long is taken for dead
      most       int   replays remembered
      text       json  how it stands
GIVES 1, and 'stop' if somebody asked for that; 0 if somebody else leads it, or there is none; what was noted before ]]
-- @include now
redis.call('ZREM', replays, '') -- as in include/afford.lua: letters come back on a full server, so how far it is must be noted
local key = replay .. ':' .. run
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
  text = known[3] or text -- whoever takes over what there is goes on from what was noted
end
redis.call('HSET', key, 'owner', verb == 'end' and '' or owner, 'beat', string.format('%d', now), 'text', text)
redis.call('PEXPIRE', key, live_ms)
redis.call('ZADD', replays, now, run)
redis.call('PEXPIRE', replays, live_ms)
redis.call('ZREMRANGEBYRANK', replays, 0, -most - 1)
return { 1, verb == 'note' and known[4] or '', before }
