-- The job that holds a name for a time.
local function unique_key(owner) return unique .. ':' .. owner end
