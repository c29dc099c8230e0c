--[[ Store what a running job reports: its progress, and its log so far.
KEYS  claims     hash  "token worker since"
      notes      -     prefix of progress and logs
ARGV  living_ms  int   TTL while the job is alive; the script that ends the job shortens it
                       then per note: id, token, field, text, ms; token '' when the job has ended with this note
                       field '': only the TTL of the notes changes
                       ms: TTL instead of `living_ms`, '' if not; 0: they are removed
GIVES how many were written; a note under a lost lease is dropped ]]
-- @include store/notes_key
local written = 0
for i = 2, #ARGV, 5 do
  local id, token, ms = ARGV[i], ARGV[i + 1], ARGV[i + 4]
  local claim = token ~= '' and redis.call('HGET', claims, id)
  if token == '' or (claim and string.match(claim, '^%d+') == token) then
    local key = notes_key(id)
    if ms == '0' then redis.call('UNLINK', key)
    else
      if ARGV[i + 2] ~= '' then redis.call('HSET', key, ARGV[i + 2], ARGV[i + 3]) end
      redis.call('PEXPIRE', key, ms == '' and living_ms or ms)
      written = written + 1
    end
  end
end
return written
