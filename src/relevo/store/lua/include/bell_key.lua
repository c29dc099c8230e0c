-- The bell of one worker.
local function bell_key(owner) return bell_key(owner) end
