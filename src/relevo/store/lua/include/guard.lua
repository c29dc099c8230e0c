-- Prepended to every script. A key that another program filled with another type must not stop a script half-way, after jobs
-- were removed and before their results are written: it is set aside as `aside:<name>` for a week, and the command is carried
-- out as if the key did not exist. A counter that is not a number starts anew. Both are noted in `faults`, for log and health.
-- Scripts use `call` for each `redis.call` (see scripts.py). It uses globals where it can: each local that a function uses costs
-- time in each run of each script.
local faults_now -- the faults met in this run
local function call(...)
  local reply = redis.pcall(...)
  if type(reply) ~= 'table' or not reply.err then return reply end
  -- @include store/note_fault
  local command, key, field = ...
  local tag, name = string.match(tostring(key), '^({[^}]*}:)(.*)$')
  if tag and string.find(reply.err, 'WRONGTYPE', 1, true) then
    local aside = tag .. 'aside:' .. name
    if type(server('RENAME', key, aside)) == 'table' and server('EXISTS', key) == 1 then
      note_fault(key, '', 'a key of another type is in its place, and this user may not rename it')
      -- A command that only reads gets what a missing key would give.
      local none = { ZCARD = 0, HLEN = 0, XLEN = 0, HSTRLEN = 0, STRLEN = 0, ZCOUNT = 0, HEXISTS = 0, GET = false, HGET = false, ZSCORE = false,
        GETRANGE = '', HSCAN = { '0', {} }, HKEYS = {}, HGETALL = {}, HMGET = {}, ZMSCORE = {}, ZRANDMEMBER = {}, ZRANGE = {}, ZREVRANGE = {},
        ZRANGEBYSCORE = {}, LRANGE = {}, XRANGE = {}, XREVRANGE = {} }
      if none[command] ~= nil then return none[command] end
      error('WRONGTYPE ' .. key .. ' holds a value of another type, which relevo did not write: rename or remove it')
    end
    server('PEXPIRE', aside, '604800000')
    note_fault(key, '', 'a key of another type was in its place; it is set aside as aside:' .. name)
  elseif tag and command == 'HINCRBY' then
    note_fault(key, ' ' .. field, 'a counter was no number: ' .. string.sub(tostring(server('HGET', key, field)), 1, 80))
    server('HDEL', key, field)
  end
  return redis.call(...) -- a second error ends the script
end
