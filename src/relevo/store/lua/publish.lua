--[[ Publish an event: find who subscribed to its topic, and write one letter to all of them, which is the caller's to
deliver for a moment. Said twice while the letter is there, nothing is written again. With nobody to tell, nothing is.
KEYS  subscriptions topics errands letters
      sent       -     prefix of counters of calls
ARGV  session    name  of the connection and this queue, see include/arrive.lua
      number     text  of this call in its session; if it is the first, or timed, or repeated, also when it may arrive, how long
                       its session is known, and its earlier tries
      topic      text  of the event
      id         id    of the event, and of its jobs
      details    text  all else that is to be known when it is delivered, see store/deliveries.py
      logged     flag  1: it is kept in a log, so there is a letter even if nobody subscribed
      lease_ms   int   how long the letter is the caller's
      close_ms   int   after which the queue of a lapsed subscription is cleared
      body       json  of the jobs, without its closing brace
GIVES when it was published, whom it goes to: queue, most jobs there may be, what is dropped then, retention, since when it
      is subscribed, …; only the time if an earlier try was carried out and its letter delivered ]]
-- @include arrive
-- @include now
-- @include subscription
-- @include dismiss
-- @include topic
local letter = id .. '.event'
local written = redis.call('HGET', letters, letter)
if written then
  redis.call('ZADD', errands, now + lease_ms, letter)
  return { string.match(written, '^event\n%S+ (%d+)'), string.match(written, '^[^\n]*\n[^\n]*\n([^\n]*)') }
end
if was_done then return { string.format('%d', now) } end
local rows, lapsed, patterns = {}, {}, patterns_of(topic)
for i, names in ipairs(redis.call('HMGET', topics, unpack(patterns))) do
  for queue in string.gmatch(names or '', '%S+') do
    local text = redis.call('HGET', subscriptions, queue)
    -- What somebody removed or wrote there without our scripts is left out: it must not stop the others.
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
  redis.call('HSET', letters, letter, table.concat({ 'event', id .. ' ' .. now_text .. ' ' .. topic .. ' ' .. details, to, body }, '\n'))
  redis.call('ZADD', errands, now + lease_ms, letter)
end
for i = 1, #lapsed, 2 do dismiss(lapsed[i], lapsed[i + 1]) end
return { now_text, to }
