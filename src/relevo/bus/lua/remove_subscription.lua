--[[ Remove a subscription. Events on their way still reach its queue, which the relay then clears and removes.
KEYS  subscriptions topics errands letters
ARGV  queue      text  its queue
      unseen     int   only if it was not renewed since this time; '': in any case
      close_ms   int   after which its queue is cleared
GIVES 1 if it was removed ]]
-- @include store/now
redis.call('ZREM', errands, '') -- as in store/lua/include/afford.lua: removing must work on a full server, too
-- @include bus/subscription
-- @include bus/drop_subscription
local text = redis.call('HGET', subscriptions, queue)
if not text or unseen ~= '' and number_in(text, 'seen_ms') > tonumber(unseen) then return 0 end
dismiss(queue, text)
return 1
