--[[ Which of these jobs have a body and are in no set: nobody will ever see them.
KEYS  jobs ready scheduled running waiting claims
      strays     zset  those that were found before, by when
ARGV                   the ids
GIVES per job that is so: its place among the ids, since when that is known (0: it is not), its claim ]]
local placed, said = {}, {}
for _, set in ipairs({ ready, scheduled, running, waiting }) do
  for i, score in ipairs(redis.call('ZMSCORE', set, unpack(ARGV))) do placed[i] = placed[i] or score end
end
for i = 1, #ARGV do
  local id = ARGV[i]
  if not placed[i] and redis.call('HEXISTS', jobs, id) == 1 then
    said[#said + 1] = i - 1
    said[#said + 1] = redis.call('ZSCORE', strays, id) or '0'
    said[#said + 1] = redis.call('HGET', claims, id) or ''
  end
end
return said
