--[[ Extend the leases of jobs a worker still holds.
KEYS  running    zset  lease deadline
      claims     hash  "token worker since [c]"
      contact    string  when workers last reached the server
ARGV  lease_ms   int   from now on
                       then per job: id, token
GIVES ids whose lease was lost, ids that are to be cancelled, now ]]
-- @include store/now
-- @include store/afford
-- @include engine/contact
note_contact(tonumber(lease_ms))
local lost, cancelled, entries = {}, {}, {}
for i = 2, #ARGV, 2 do
  local id, claim = ARGV[i], redis.call('HGET', claims, ARGV[i])
  if claim and string.match(claim, '^%d+') == ARGV[i + 1] then
    entries[#entries + 1] = now + lease_ms
    entries[#entries + 1] = id
    if string.sub(claim, -2) == ' c' then cancelled[#cancelled + 1] = id end
  else
    lost[#lost + 1] = id
  end
end
if #entries > 0 then redis.call('ZADD', running, 'XX', unpack(entries)) end
return { lost, cancelled, now }
