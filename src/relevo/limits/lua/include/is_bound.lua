-- Whether a limit may delay a job: then only a turn, which checks and counts limits, may hand it out.
-- @include engine/tenant
local function is_bound(body)
  for _, name in ipairs({ 'q:', task_of(body) or '', tenant_of(body) or '' }) do
    if name ~= '' and (redis.call('HEXISTS', limits, name) == 1 or redis.call('ZSCORE', parking, name)) then return true end
  end
  return false
end
