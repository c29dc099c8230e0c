--[[ Write down what a running job says about itself: progress, and its log so far.
KEYS  claims     hash  "token worker since"
      notes      -     prefix of progress and logs
ARGV  ttl        int   how long it is kept, ms
                       then per note: id, token, field, text; token '' when the job has ended with this note
GIVES how many were written; a note of a lost lease is dropped ]]
local written = 0
for i = 2, #ARGV, 4 do
  local id, token = ARGV[i], ARGV[i + 1]
  local claim = token ~= '' and redis.call('HGET', claims, id)
  if token == '' or (claim and string.match(claim, '^%d+') == token) then
    local key = notes .. ':' .. id
    redis.call('HSET', key, ARGV[i + 2], ARGV[i + 3])
    redis.call('PEXPIRE', key, ttl)
    written = written + 1
  end
end
return written
