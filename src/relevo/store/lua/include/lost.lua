-- A job whose lease has ended is taken back under a new token: the old holder may still live, but its word no longer counts.
-- Who decides what becomes of the job is the caller; if the caller dies too, this lease ends and the next one is asked.
local function take_back(id, lease_text)
  -- A claim that is missing or that a stranger wrote must not stop the caller: what it did so far would stay half done.
  local token, rest = string.match(redis.call('HGET', claims, id) or '', '^(%d+)( %S+ %d+.*)$')
  if not token then token, rest = 0, ' nobody 0' end
  local claim = string.format('%d', token + 1) .. rest
  redis.call('HSET', claims, id, claim)
  redis.call('ZADD', running, lease_text, id)
  return claim
end
