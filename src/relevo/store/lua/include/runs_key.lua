-- The history of a schedule.
local function runs_key(owner) return runs .. ':' .. owner end
