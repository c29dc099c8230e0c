--[[ Remove abandoned subscriptions: broadcast ones when their lease has ended, durable ones when they were not renewed for too
long. Halfway to that, they are marked, once, so that a warning can be given.
KEYS  subscriptions topics errands letters
ARGV  close_ms   int   after which the queue of a removed one is cleared
      most       int   how many are changed in one call
GIVES the marked ones, the removed ones, as queue, text, … ]]
-- @include store/now
redis.call('ZREM', errands, '') -- as in store/lua/include/afford.lua: removing must work on a full server, too
-- @include bus/subscription
-- @include bus/drop_subscription
local marked, removed = {}, {}
local all = redis.call('HGETALL', subscriptions)
for i = 1, #all, 2 do
  local queue, text = all[i], all[i + 1]
  local unseen, patience = now - number_in(text, 'seen_ms'), number_in(text, 'inactive_ms')
  local list
  local is_durable, is_new = number_in(text, 'until_ms') == 0, string.find(text, '"warned":false}', 1, true)
  if has_lapsed(text) or is_durable and unseen >= patience and not is_new then
    dismiss(queue, text)
    list = removed
  elseif is_durable and unseen >= patience / 2 and is_new then
    local warned = string.gsub(text, '"warned":false}$', '"warned":true}')
    if unseen >= patience then -- no sweep ran in time to warn: allow half of the time from now on
      warned = string.gsub(warned, '"seen_ms":%d+', '"seen_ms":' .. string.format('%d', now - math.floor(patience / 2)))
    end
    redis.call('HSET', subscriptions, queue, warned)
    list = marked
  end
  if list then list[#list + 1], list[#list + 2] = queue, text end
  if #marked + #removed >= most * 2 then break end
end
return { marked, removed }
