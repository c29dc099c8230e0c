-- An ended job lives again: its body and its edges are back, and what was cancelled because of it is revived, too.
local function bring_back(id, record, body, name)
  redis.call('DEL', ended_key(id))
  redis.call('HSET', jobs, id, body)
  if name ~= '' then redis.call('HSETNX', names, name, id) end
  -- Tokens continue from the last life, so that an old holder cannot settle this one.
  local token = tonumber(string.match(record, '^{"token":(%d+),') or 0) + 1
  redis.call('HSET', claims, id, string.format('%d', token) .. ' none ' .. string.format('%d', now))
  local edges = string.match(record, '^{"token":%d+,"edges":"([^"]*)"')
  if edges then
    redis.call('HSET', waiters, id, edges)
    redis.call('ZREM', errands, id .. '.gone')
    redis.call('HDEL', letters, id .. '.gone')
    announce(id, 'revived', string.format('%d', token * 2 - 1), edges, '')
  end
  return token * 2 - 1
end
