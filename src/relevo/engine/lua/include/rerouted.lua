-- Jobs that a worker could not take, because it does not know their task or refuses their arguments. They are scheduled for
-- the time at which their wait ends, and are in a line, parked:r:<target>\n<refusals>, from which only the turns of workers
-- that fit take them. `rerouted`: id -> target\nrefusals; `sought`: target -> the refusals of its lines, separated by spaces.
-- Refusals are the signatures of the target that refused the job, '-' for none; after '!' where the job is refused for good
-- once no live worker fits.
-- @include engine/reroute_line
local function join_reroute(target, refusals, rows) -- rows: score, id, ...
  local fields, lines_of = {}, redis.call('HGET', sought, target)
  for i = 2, #rows, 2 do fields[i - 1], fields[i] = rows[i], target .. '\n' .. refusals end
  redis.call('ZADD', reroute_line(target, refusals), unpack(rows))
  redis.call('HSET', rerouted, unpack(fields))
  if not lines_of then redis.call('HSET', sought, target, refusals)
  elseif not string.find(' ' .. lines_of .. ' ', ' ' .. refusals .. ' ', 1, true) then
    redis.call('HSET', sought, target, lines_of .. ' ' .. refusals)
  end
end
local function quit_reroute(target, refusals, ids)
  local line, left = reroute_line(target, refusals), {}
  redis.call('ZREM', line, unpack(ids))
  redis.call('HDEL', rerouted, unpack(ids))
  if redis.call('EXISTS', line) == 1 then return end
  for one in string.gmatch(redis.call('HGET', sought, target) or '', '%S+') do
    if one ~= refusals then left[#left + 1] = one end
  end
  if #left > 0 then redis.call('HSET', sought, target, table.concat(left, ' ')) else redis.call('HDEL', sought, target) end
end
-- Take these jobs out of their lines.
local function leave_reroute(ids)
  for i, line in ipairs(redis.call('HMGET', rerouted, unpack(ids))) do
    local target, refusals = string.match(line or '', '^(.*)\n(.*)$')
    if target then quit_reroute(target, refusals, { ids[i] }) elseif line then redis.call('HDEL', rerouted, ids[i]) end
  end
end
