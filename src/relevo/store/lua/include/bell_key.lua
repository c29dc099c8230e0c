-- The bell of one worker.
local function bell_key(owner) return bell .. ':' .. owner end
