-- The line of a tenant, a task or another build.
local function parked_key(owner) return parked .. ':' .. owner end
