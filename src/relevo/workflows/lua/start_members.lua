--[[ Start the members of a workflow that one call has stored (workflows/store_members.lua). Starting them twice changes nothing.
KEYS  ready waiting clock errands letters idle bell
ARGV  letter     name  the outbox message that would cancel them; if it was delivered, they are gone
GIVES how many were started ]]
-- @include store/now
-- @include engine/wake_worker
-- @include engine/fair_tags
local text = redis.call('HGET', letters, letter)
if not text then return 0 end
local priority = string.match(text, '\n(%d%d?%d?%d?) %d+$') or '100'
local ids = {}
for id in string.gmatch(text, '>c:(' .. string.rep('%w', 20) .. ')') do ids[#ids + 1] = id end
redis.call('ZREM', errands, letter) -- first, as in store/lua/include/afford.lua
redis.call('HDEL', letters, letter)
if #ids == 0 then return 0 end
local entries = {}
local since = redis.call('ZMSCORE', waiting, unpack(ids))
for i, id in ipairs(ids) do
  if since[i] then -- else it was cancelled
    entries[#entries + 1] = place(priority, '', 1)
    entries[#entries + 1] = id
  end
end
redis.call('ZREM', waiting, unpack(ids))
if #entries == 0 then return 0 end
redis.call('ZADD', ready, unpack(entries))
keep_marks()
for _ = 1, math.min(#entries / 2, 64) do
  local worker = wake()
  if not worker then break end
  ring(worker, '')
end
return #entries / 2
