-- When the next entry of the outbox is due, and whether it is due now.
local function errand_first() return tonumber(redis.call('ZRANGE', errands, 0, 0, 'WITHSCORES')[2]) end
local function errand_is_due()
  local first = errand_first()
  return first and first <= now and 1 or 0
end
