-- The progress of a replay.
local function replay_key(owner) return replay .. ':' .. owner end
