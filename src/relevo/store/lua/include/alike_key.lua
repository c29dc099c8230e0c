-- The dead letters of one error group.
local function alike_key(owner) return alike .. ':' .. owner end
