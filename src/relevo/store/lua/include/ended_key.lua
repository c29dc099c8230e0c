-- The record of an ended job.
local function ended_key(owner) return ended .. ':' .. owner end
