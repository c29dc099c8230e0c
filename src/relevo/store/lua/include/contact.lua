-- When workers last reached the server (`contact`: last call, until when leases hold). If none did for longer than half a
-- lease, none could renew: the server was away or moved, or its clock was set. Then no lease is taken back before living
-- workers have had the time to come back and renew. Workers call at least every third of a lease while jobs run.
local COME_BACK_MS = 5000 -- longer than a worker ever waits between two tries to reach the server
local CONTACT_TTL_MS = 60000 -- once it is gone, nobody knows when the last call was: as after a long silence
local function note_contact(lease_ms)
  local last, hold = string.match(redis.call('GET', contact) or '', '^(%d+) (%d+)$')
  last, hold = tonumber(last), tonumber(hold) or 0
  if last and now >= last and now - last < 250 then return hold end -- noted just now
  redis.call('ZREM', running, '') -- see afford.lua
  if not last or math.abs(now - last) > math.max(lease_ms / 2, 1000) or hold > now + COME_BACK_MS then
    hold = redis.call('ZCARD', running) > 0 and now + COME_BACK_MS or 0
  end
  redis.call('SET', contact, string.format('%d %d', now, hold), 'PX', CONTACT_TTL_MS)
  return hold
end
