-- What a job carries with it.
local function carried_key(owner) return carried .. ':' .. owner end
