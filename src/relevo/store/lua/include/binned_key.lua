-- The record of a discarded dead letter.
local function binned_key(owner) return binned .. ':' .. owner end
