-- What a job carries with it.
local function carried_key(owner) return carried_key(owner) end
