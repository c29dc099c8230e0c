--[[ Publish an event: find the subscribers of its topic, and write one outbox message to all of them, which is leased to the
caller for delivery. Repeated calls write nothing while that message exists. Without subscribers, nothing is written.
KEYS  subscriptions topics errands letters
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see engine/lua/include/accept_call.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      topic      text  of the event
      id         id    of the event, and of its jobs
      details    text  what its delivery needs besides, see bus/delivery_store.py
      logged     flag  1: it is kept in a log, so the outbox message is written even without subscribers
      lease_ms   int   how long the outbox message is the caller's
      close_ms   int   after which the queue of a lapsed subscription is cleared
      body       json  of the jobs, without its closing brace
GIVES when it was published, its subscribers: queue, most jobs there may be, what is dropped then, retention, since when it
      is subscribed, …; only the time if an earlier try was carried out and its outbox message delivered ]]
-- @include engine/accept_call
-- @include store/now
-- @include bus/subscription
-- @include bus/drop_subscription
-- @include bus/topic
local message = id .. '.event'
local written = redis.call('HGET', letters, message)
if written then
  redis.call('ZADD', errands, now + lease_ms, message)
  return { string.match(written, '^event\n%S+ (%d+)'), string.match(written, '^[^\n]*\n[^\n]*\n([^\n]*)') }
end
if was_done then return { string.format('%d', now) } end
local rows, lapsed, patterns = {}, {}, patterns_of(topic)
for i, names in ipairs(redis.call('HMGET', topics, unpack(patterns))) do
  for queue in string.gmatch(names or '', '%S+') do
    local text = redis.call('HGET', subscriptions, queue)
    -- Entries that another program removed or wrote are left out: they must not stop the others.
    if text and pattern_in(text) == patterns[i] then
      if has_lapsed(text) then lapsed[#lapsed + 1], lapsed[#lapsed + 2] = queue, text
      else
        rows[#rows + 1] = queue .. ' ' .. string.format('%d', number_in(text, 'max_backlog')) .. ' '
          .. (string.match(text, '"discard":"(%a+)"') or 'old') .. ' ' .. string.format('%d', number_in(text, 'retention_ms'))
          .. ' ' .. string.format('%d', number_in(text, 'created_ms'))
      end
    end
  end
end
local now_text, to = string.format('%d', now), table.concat(rows, ' ')
if #rows > 0 or logged == '1' then
  redis.call('HSET', letters, message, table.concat({ 'event', id .. ' ' .. now_text .. ' ' .. topic .. ' ' .. details, to, body }, '\n'))
  redis.call('ZADD', errands, now + lease_ms, message)
end
for i = 1, #lapsed, 2 do dismiss(lapsed[i], lapsed[i + 1]) end
return { now_text, to }
