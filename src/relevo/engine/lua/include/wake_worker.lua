-- @include store/bell_key
-- Take one idle worker off the list. Registrations expire, so that a killed worker is called at most once.
local LONGEST_REST = 3600000 -- no worker waits longer: another program wrote it, or the clock was set back
local function is_believed(till)
  return tonumber(till) >= now and tonumber(till) <= now + LONGEST_REST
end
local function wake()
  for _ = 1, 8 do
    local got = redis.call('ZPOPMAX', idle)
    if not got[1] then return nil end
    if is_believed(got[2]) then return got[1] end
  end
end
local function ring(worker, message)
  local list = bell_key(worker)
  redis.call('RPUSH', list, message)
  redis.call('PEXPIRE', list, 60000) -- a worker that died never reads its bell
end
