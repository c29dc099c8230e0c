-- When workers last reached the server (`contact`: time of the last call, until when leases are held). If none did for longer
-- than half a lease, none could renew: the server was down or moved, or its clock was set. Then no lease is taken back until
-- live workers have had the time to reconnect and renew. Workers call at least every third of a lease while jobs run.
local COME_BACK_MS = 5000 -- longer than a worker ever waits between two tries to reach the server
local CONTACT_TTL_MS = 60000 -- without the key, the last call counts as long ago
local function note_contact(lease_ms)
  local last, hold = string.match(redis.call('GET', contact) or '', '^(%d+) (%d+)$')
  last, hold = tonumber(last), tonumber(hold) or 0
  if last and now >= last and now - last < 250 then return hold end -- noted just now
  redis.call('ZREM', running, '') -- see store/include/afford.lua
  if not last or math.abs(now - last) > math.max(lease_ms / 2, 1000) or hold > now + COME_BACK_MS then
    hold = redis.call('ZCARD', running) > 0 and now + COME_BACK_MS or 0
  end
  redis.call('SET', contact, string.format('%d %d', now, hold), 'PX', CONTACT_TTL_MS)
  return hold
end
