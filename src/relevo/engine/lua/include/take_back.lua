-- A job whose lease has ended is taken back under a new token: the old holder may be alive, but can no longer settle the job.
-- The caller decides what becomes of the job; if it dies too, this lease ends and the next caller decides.
local function take_back(id, lease_text)
  -- A claim that is missing or unreadable must not stop the caller half-way.
  local token, rest = string.match(redis.call('HGET', claims, id) or '', '^(%d+)( %S+ %d+.*)$')
  if not token then token, rest = 0, ' none 0' end
  local claim = string.format('%d', token + 1) .. rest
  redis.call('HSET', claims, id, claim)
  redis.call('ZADD', running, lease_text, id)
  return claim
end
