-- The record of a discarded dead letter.
local function binned_key(owner) return binned_key(owner) end
