-- The entities of a pool in one state.
local function placed_key(owner) return placed .. ':' .. owner end
