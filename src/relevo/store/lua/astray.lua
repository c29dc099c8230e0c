--[[ Which of these jobs have a body and are in no set: nobody will ever see them.
KEYS  jobs ready scheduled running waiting claims
      strays     zset  those that were found before, by when
ARGV                   the ids
GIVES per job: since when that is known (0: it is not; -1: it is in a set, or there is none), its claim ]]
local said = {}
for i = 1, #ARGV do
  local id, found = ARGV[i], false
  for _, set in ipairs({ ready, scheduled, running, waiting }) do found = found or redis.call('ZSCORE', set, id) end
  said[#said + 1] = (found or redis.call('HEXISTS', jobs, id) == 0) and '-1' or redis.call('ZSCORE', strays, id) or '0'
  said[#said + 1] = redis.call('HGET', claims, id) or ''
end
return said
