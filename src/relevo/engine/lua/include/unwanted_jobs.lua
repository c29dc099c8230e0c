-- Makes jobs whose arguments were refused, and which no live worker would take any more, ready again: the next worker that
-- gets one finds no other for it and refuses it for good. Returns how many; bounded per call.
local MOST_TARGETS, MOST_HOPELESS = 100, 100
local function free_hopeless()
  if redis.call('EXISTS', rerouted) == 0 then return 0 end
  local some, freed = redis.call('HRANDFIELD', sought, MOST_TARGETS, 'WITHVALUES'), 0
  for i = 1, #some, 2 do
    for refusals in string.gmatch(some[i + 1], '%S+') do
      if freed < MOST_HOPELESS and string.sub(refusals, 1, 1) == '!' and #takers_of(some[i], refusals) == 0 then
        local rows, ids, entries = redis.call('ZRANGE', reroute_line(some[i], refusals), 0, MOST_HOPELESS - 1, 'WITHSCORES'), {}, {}
        for j = 1, #rows, 2 do ids[#ids + 1], entries[j], entries[j + 1] = rows[j], rows[j + 1], rows[j] end
        quit_reroute(some[i], refusals, ids)
        redis.call('ZREM', scheduled, unpack(ids))
        redis.call('HDEL', groups, unpack(ids))
        redis.call('ZADD', ready, unpack(entries))
        freed = freed + #ids
      end
    end
  end
  return freed
end
