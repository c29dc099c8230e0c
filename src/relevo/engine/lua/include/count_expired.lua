-- How many entries at the beginning of an index have lost their records (see engine/include/tidy_index.lua): read-only callers count without them.
-- Beyond 100 the end is found by bisection, since records of one kind expire in the order in which they came.
local AT_ONCE = 100
local function gone(index)
  local function is_there(id) return not id or redis.call('EXISTS', ended_key(id)) == 1 end
  local function at(rank) return redis.call('ZRANGE', index, rank, rank)[1] end
  if is_there(at(0)) then return 0 end -- most often
  local first = redis.call('ZRANGE', index, 0, AT_ONCE - 1)
  for n, id in ipairs(first) do
    if is_there(id) then return n - 1 end
  end
  local low, high = #first, redis.call('ZCARD', index)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_there(at(middle)) then high = middle else low = middle + 1 end
  end
  return low
end
local function still_there(index) return redis.call('ZCARD', index) - gone(index) end
